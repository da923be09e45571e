// Purpose:  turns generated token ids into chat events, for the format of the checkpoint. Parsing is by token id: text
//           that spells a marker stays text.
// Shapes:   none.
// Units:    tokens.
// Memory:   keeps the Tokenizer by pointer; buffers at most one element header, one unfinished code point and one
//           non-string argument value.
// Threads:  one stream belongs to one thread at a time.
// Errors:   none: every sequence of ids has a result (ids outside the vocabulary are ignored); see warnings().
// Source:   api.md 5 (whole code points), 6.3, 7.3, 7.4; model.md 5.3.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "k3/format/chat/chat.h"
#include "k3/format/chat/output/chat_events.h"
#include "k3/format/tokenizer.h"

namespace k3 {

struct ParserOptions {
  OpenChannel start = OpenChannel::response;  // Prompt::open
  bool thinking = false;                      // Prompt::thinking; off: everything is content
  int64_t first_call_index = 0;               // ChatRequest::call_count()
  bool strict_tools = false;                  // drop calls to tools that are not in `tools`
  std::vector<std::string> tools = {};
};
ParserOptions parser_options(const ChatRequest& request, const Prompt& prompt);

class OutputParser {
 public:
  OutputParser(const ChatFormat& format, const Tokenizer& tokenizer, ParserOptions options);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  void push(int32_t id, std::vector<ChatEvent>& events);         // appends
  void finish(StopCause cause, std::vector<ChatEvent>& events);  // appends what was held back, then `finished`
  bool ended() const;                                            // the model closed its message: stop generating
  bool in_reasoning() const;                                     // the next text would be reasoning
  bool in_content() const;                                       // the next text would be content (stop strings apply)
  int64_t reasoning_tokens() const;
  int64_t warnings() const;  // repairs of malformed output

  // What is missing to close the assistant's message after the pushed tokens (call before or after finish()).
  Prompt closing() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3
