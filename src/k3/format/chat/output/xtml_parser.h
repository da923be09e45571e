// Purpose:  the state machine that reads the XTML of an assistant message token by token; internal to OutputParser.
// Shapes:   none.
// Units:    tokens.
// Memory:   keeps the Tokenizer by pointer; buffers one element header and what CallStream buffers.
// Threads:  one stream belongs to one thread at a time.
// Errors:   none; repairs are counted.
// Source:   api.md 6.3, 7.4; model.md 5.3.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "k3/format/chat/output/call_stream.h"
#include "k3/format/chat/output/output_parser.h"
#include "k3/format/chat/output/xtml_tag.h"

namespace k3 {

class XtmlParser {
 public:
  XtmlParser(const Tokenizer& tokenizer, ParserOptions options);

  void push(int32_t id, std::vector<ChatEvent>& events);
  void finish(StopCause cause, std::vector<ChatEvent>& events);
  bool ended() const { return state_ == State::ended; }
  bool in_reasoning() const { return state_ == State::think && marker_ == Marker::none; }
  bool in_content() const;
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  int64_t warnings() const { return warnings_ + call_.warnings(); }
  std::vector<Segment> closing() const { return closing_ ? *closing_ : missing_segments(); }

 private:
  // message: inside the message but in none of its elements. after_tools: the rest of the message is dropped.
  enum class State { message, think, response, tools, call, argument, json, after_tools, ended };
  enum class Marker { none, open, close };

  void begin_marker(Marker marker, std::vector<ChatEvent>& events);
  void end_marker(std::vector<ChatEvent>& events);
  void text(std::string piece, std::vector<ChatEvent>& events);
  void message_text(std::string piece, std::vector<ChatEvent>& events);
  void flush_text(std::vector<ChatEvent>& events);

  void on_open(const XtmlTag& tag, std::vector<ChatEvent>& events);
  void open_think();
  void open_response(std::vector<ChatEvent>& events);
  void open_tools();
  void open_call(const XtmlTag& tag, std::vector<ChatEvent>& events);
  void open_value(const XtmlTag& tag, std::vector<ChatEvent>& events);
  void open_unknown(const XtmlTag& tag);
  void on_close(const std::string& tag, std::vector<ChatEvent>& events);

  bool in_value() const { return state_ == State::argument || state_ == State::json; }
  bool in_call() const { return in_value() || state_ == State::call; }
  void end_call(std::vector<ChatEvent>& events);
  void end_message(std::vector<Segment> closing, std::vector<ChatEvent>& events);
  std::vector<Segment> missing_segments() const;

  const Tokenizer* tokenizer_;
  ParserOptions options_;
  StreamDecoder decoder_;
  std::optional<int32_t> open_id_, close_id_, sep_id_, end_id_;

  State state_ = State::message;
  Marker marker_ = Marker::none;
  std::string header_;  // bytes of the marker that is being written
  std::string skip_;    // tag of the element that is being ignored; empty: none
  std::string blank_;   // blank text in `message`, kept only if text follows
  bool response_done_ = false;
  bool finished_ = false;
  CallStream call_;
  int calls_ = 0;
  int64_t reasoning_tokens_ = 0, warnings_ = 0;
  std::optional<std::vector<Segment>> closing_;  // set once the message is over
};

}  // namespace k3
