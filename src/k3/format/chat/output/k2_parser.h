// Purpose:  output of the K2-style format (Kimi-Linear): text until <|im_end|>, then tool call sections. Unverified.
//           Internal to OutputParser.
// Shapes:   none.
// Units:    tokens.
// Memory:   keeps the Tokenizer by pointer; buffers one call header.
// Threads:  one stream belongs to one thread at a time.
// Errors:   none; repairs are counted.
// Source:   model.md 5.1, 5.3.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "k3/format/chat/output/output_parser.h"

namespace k3 {

class K2Parser {
 public:
  K2Parser(const Tokenizer& tokenizer, ParserOptions options);

  void push(int32_t id, std::vector<ChatEvent>& events);
  void finish(StopCause cause, std::vector<ChatEvent>& events);
  bool ended() const { return state_ == State::ended; }
  bool in_reasoning() const { return false; }
  bool in_content() const { return state_ == State::text; }
  int64_t reasoning_tokens() const { return 0; }
  int64_t warnings() const { return warnings_; }
  std::vector<Segment> closing() const;

 private:
  enum class State { text, section, header, arguments, dropped, after_section, ended };

  void flush(std::vector<ChatEvent>& events);
  void text(std::string piece, std::vector<ChatEvent>& events);
  void begin_arguments(std::vector<ChatEvent>& events);
  void end_call(std::vector<ChatEvent>& events);

  const Tokenizer* tokenizer_;
  ParserOptions options_;
  StreamDecoder decoder_;
  std::optional<int32_t> end_id_, section_begin_, section_end_, call_begin_, argument_begin_, call_end_;
  State state_ = State::text;
  std::string header_;
  bool finished_ = false, end_seen_ = false, arguments_empty_ = true;
  std::vector<Segment> before_end_;  // what was open when an end was forced
  int calls_ = 0;
  int64_t warnings_ = 0;
};

}  // namespace k3
