// Purpose:  one choice: generated tokens in, pieces of the answer out, the same for every dialect and for streams and whole
//           answers. Channels, calls and repairs are the OutputParser's; stop strings and logprobs are added here.
// Shapes:   none.
// Units:    tokens.
// Memory:   keeps the tokenizer by pointer; holds back what may begin a stop string. With `keep` also the whole message.
// Threads:  one choice belongs to one thread at a time.
// Errors:   none: every sequence of ids has a result.
// Source:   api.md 5, 6.3, 6.4, 7.4, 9.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/engine/generate.h"
#include "k3/engine/request.h"
#include "k3/format/chat/output/output_parser.h"

namespace k3::server {

struct LogprobToken {
  std::string bytes;
  bool control = false;  // a special token: it has no bytes
  float logprob = 0;
};
LogprobToken logprob_token(const Tokenizer& tokenizer, int32_t id, float logprob);

// Of one emitted token; of several when they make up one code point together (the sum, and the alternatives to the first).
struct LogprobEntry {
  LogprobToken token;
  std::vector<LogprobToken> top;
  int64_t text_offset = 0;  // bytes of the content before it
  int64_t char_offset = 0;  // the same in characters
};

// What one frame of a stream says.
struct Piece {
  enum class Kind { reasoning, boundary, content, call_start, call_arguments };
  Kind kind = Kind::content;
  std::string text = {};
  int call_index = 0;
  std::string call_id = {}, call_name = {};  // call_start
  std::vector<int32_t> token_ids = {};       // that made it; never empty once a token came
  std::vector<LogprobEntry> logprobs = {};
};

struct ChoiceOptions {
  std::vector<std::string> stops;
  bool logprobs = false, ignore_eos = false, skip_specials = true;
  bool one_call = false;  // parallel_tool_calls: false
  bool keep = false;      // for whole answers: message() and logprobs()
};

class ChoiceStream {
 public:
  // A chat answer, or (without a parser) raw text, all of which is content.
  ChoiceStream(const Tokenizer& tokenizer, std::optional<OutputParser> parser, bool thinking, ChoiceOptions options);

  bool push(const GeneratedToken& token, std::vector<Piece>& out);  // false: the choice ends with this token
  void finish(EndReason reason, std::vector<Piece>& out);

  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t reasoning_tokens() const { return parser_ ? parser_->reasoning_tokens() : 0; }
  bool thinking() const { return thinking_; }
  bool finished() const { return finished_; }
  const std::string& finish_reason() const { return finish_reason_; }
  const std::string& matched_stop() const { return matcher_.matched_stop(); }  // empty: none
  AssistantMessage message() const { return assembler_.message(); }
  const std::vector<LogprobEntry>& logprobs() const { return kept_logprobs_; }
  int64_t warnings() const { return parser_ ? parser_->warnings() : 0; }

 private:
  void note_logprob(const GeneratedToken& token);
  void complete_logprob();
  void take(std::vector<ChatEvent> events, std::vector<Piece>& out);
  void content(std::string text, std::vector<Piece>& out);
  void emit(Piece piece, std::vector<Piece>& out);
  void emit_boundary(std::vector<Piece>& out);

  const Tokenizer* tokenizer_;
  std::optional<OutputParser> parser_;
  StreamDecoder decoder_;  // raw text
  StopMatcher matcher_;
  ChoiceOptions options_;
  bool thinking_ = false, boundary_done_ = false, finished_ = false;
  bool call_ended_ = false;
  std::string finish_reason_;
  int64_t completion_tokens_ = 0;
  std::vector<int32_t> pending_ids_;
  int32_t last_id_ = -1;

  int64_t content_bytes_ = 0, content_chars_ = 0, shown_bytes_ = 0;  // of the content; shown: after stop strings
  std::optional<LogprobEntry> open_entry_;                           // an unfinished code point
  std::deque<LogprobEntry> entries_;                                 // wait for their content to be shown
  std::vector<LogprobEntry> kept_logprobs_;
  MessageAssembler assembler_;
};

// The finish reason on the wire of an end that is no normal one; empty for stop_token, stopped, length and context.
std::string_view abnormal_finish(EndReason reason);

}  // namespace k3::server
