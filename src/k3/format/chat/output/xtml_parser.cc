#include "k3/format/chat/output/xtml_parser.h"

#include <algorithm>
#include <utility>

namespace k3 {
namespace {

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos; }

bool is_structural(std::string_view tag) {
  for (const std::string_view known : {"message", "think", "response", "tools", "call", "argument", "json"}) {
    if (tag == known) return true;
  }
  return false;
}

ChatEvent text_event(ChatEvent::Kind kind, std::string text) {
  ChatEvent event;
  event.kind = kind;
  event.text = std::move(text);
  return event;
}

}  // namespace

XtmlParser::XtmlParser(const Tokenizer& tokenizer, ParserOptions options)
    : tokenizer_(&tokenizer),
      options_(std::move(options)),
      decoder_(tokenizer),
      open_id_(tokenizer.special("<|open|>")),
      close_id_(tokenizer.special("<|close|>")),
      sep_id_(tokenizer.special("<|sep|>")),
      end_id_(tokenizer.special("<|end_of_msg|>")) {
  if (options_.start == OpenChannel::think) state_ = options_.thinking ? State::think : State::response;
  if (options_.start == OpenChannel::response) state_ = State::response;
}

bool XtmlParser::in_content() const {
  const bool content = state_ == State::response || (state_ == State::message && !response_done_);
  return content && marker_ == Marker::none && skip_.empty();
}

void XtmlParser::push(int32_t id, std::vector<ChatEvent>& events) {
  if (state_ == State::ended && id == end_id_) closing_.emplace();  // the end token after the message's own close
  if (state_ == State::ended || finished_ || id < 0 || id >= tokenizer_->vocab_size()) return;
  if (id == open_id_) return begin_marker(Marker::open, events);
  if (id == close_id_) return begin_marker(Marker::close, events);
  if (id == sep_id_) return end_marker(events);
  if (id == end_id_) return end_message({}, events);
  if (tokenizer_->is_special(id)) {  // no other control token belongs into a message
    ++warnings_;
    return;
  }
  if (marker_ != Marker::none) {
    header_ += tokenizer_->bytes(id);
    return;
  }
  if (state_ == State::think) ++reasoning_tokens_;
  text(decoder_.push(id), events);
}

void XtmlParser::flush_text(std::vector<ChatEvent>& events) { text(decoder_.finish(), events); }

void XtmlParser::begin_marker(Marker marker, std::vector<ChatEvent>& events) {
  if (marker_ != Marker::none) ++warnings_;  // the unfinished one is dropped
  flush_text(events);
  marker_ = marker;
  header_.clear();
}

void XtmlParser::end_marker(std::vector<ChatEvent>& events) {
  const Marker marker = marker_;
  marker_ = Marker::none;
  if (marker == Marker::none) {
    ++warnings_;
    return;
  }
  const XtmlTag tag = parse_xtml_tag(header_);
  if (!skip_.empty()) {
    const bool closes = marker == Marker::close && tag.name == skip_;
    if (!closes && !is_structural(tag.name)) return;
    skip_.clear();
    if (closes) return;
  }
  if (marker == Marker::open) {
    on_open(tag, events);
  } else {
    on_close(tag.name, events);
  }
}

void XtmlParser::text(std::string piece, std::vector<ChatEvent>& events) {
  if (piece.empty() || !skip_.empty()) return;
  switch (state_) {
    case State::think: events.push_back(text_event(ChatEvent::Kind::reasoning, std::move(piece))); return;
    case State::response: events.push_back(text_event(ChatEvent::Kind::content, std::move(piece))); return;
    case State::message: return message_text(std::move(piece), events);
    case State::argument:
    case State::json: return call_.text(piece, events);
    case State::tools:
    case State::call:
    case State::after_tools:
    case State::ended: break;
  }
  if (!is_blank(piece)) ++warnings_;
}

// The response's open marker is missing: text is content, but blanks between elements are not.
void XtmlParser::message_text(std::string piece, std::vector<ChatEvent>& events) {
  if (response_done_) {
    if (!is_blank(piece)) ++warnings_;
    return;
  }
  const bool blank = is_blank(piece);
  blank_ += piece;
  if (blank) return;
  ++warnings_;
  state_ = State::response;
  events.push_back(text_event(ChatEvent::Kind::content, std::exchange(blank_, {})));
}

void XtmlParser::on_open(const XtmlTag& tag, std::vector<ChatEvent>& events) {
  blank_.clear();
  if (state_ == State::after_tools || tag.name == "message") {
    ++warnings_;
    if (tag.name == "message") end_message(missing_segments(), events);  // nothing of another message belongs to this one
    return;
  }
  if (tag.name == "think") return open_think();
  if (tag.name == "response") return open_response(events);
  if (tag.name == "tools") return open_tools();
  if (tag.name == "call") return open_call(tag, events);
  if (tag.name == "argument" || tag.name == "json") return open_value(tag, events);
  open_unknown(tag);
}

void XtmlParser::open_think() {
  if (!options_.thinking) {  // everything is content
    if (state_ == State::message && !response_done_) state_ = State::response;
    return;
  }
  if (state_ == State::message && !response_done_) {
    state_ = State::think;
    return;
  }
  ++warnings_;
  if (state_ != State::think) skip_ = "think";  // no reasoning after content
}

void XtmlParser::open_response(std::vector<ChatEvent>& events) {
  switch (state_) {
    case State::message:
      if (response_done_) ++warnings_;
      state_ = State::response;
      return;
    case State::think:  // implicit close
      ++warnings_;
      state_ = State::response;
      return;
    case State::tools:
    case State::call:
    case State::argument:
    case State::json:
      ++warnings_;
      if (in_call()) end_call(events);
      state_ = State::after_tools;
      return;
    default: ++warnings_;
  }
}

void XtmlParser::open_tools() {
  if (state_ == State::message || state_ == State::response || state_ == State::think) {
    if (state_ != State::message) ++warnings_;
    state_ = State::tools;
  } else {
    ++warnings_;
  }
}

void XtmlParser::open_call(const XtmlTag& tag, std::vector<ChatEvent>& events) {
  if (state_ == State::think) {
    ++warnings_;
    return;
  }
  if (state_ != State::tools) ++warnings_;
  if (in_call()) end_call(events);
  state_ = State::call;
  const auto name = tag.attribute("tool");
  const auto& declared = options_.tools;
  const bool known =
      name && (!options_.strict_tools || std::find(declared.begin(), declared.end(), *name) != declared.end());
  if (!known) return call_.drop();
  const int64_t global = options_.first_call_index + calls_;
  call_.begin(*name, *name + "_" + std::to_string(global), calls_, events);
  ++calls_;
}

void XtmlParser::open_value(const XtmlTag& tag, std::vector<ChatEvent>& events) {
  if (!in_call()) {
    ++warnings_;
    if (state_ == State::tools) skip_ = tag.name;
    return;
  }
  if (in_value()) {
    ++warnings_;
    call_.end_value(events);
  }
  if (tag.name == "json") {
    state_ = State::json;
    call_.begin_json();
  } else {
    state_ = State::argument;
    call_.begin_argument(tag.attribute("key"), tag.attribute("type").value_or(""), events);
  }
}

// In running text the markers of an unknown element are dropped and its text stays; among calls all of it goes.
void XtmlParser::open_unknown(const XtmlTag& tag) {
  ++warnings_;
  if ((in_call() || state_ == State::tools) && !tag.name.empty()) skip_ = tag.name;
}

void XtmlParser::on_close(const std::string& tag, std::vector<ChatEvent>& events) {
  blank_.clear();
  if (tag == "message") {
    const std::vector<Segment> rest = {{Segment::Kind::special, "<|end_of_msg|>"}};
    return end_message(rest, events);
  }
  if (tag == "think" && state_ == State::think) {
    state_ = State::message;
  } else if (tag == "response" && (state_ == State::response || state_ == State::message)) {
    state_ = State::message;
    response_done_ = true;
  } else if ((tag == "argument" && state_ == State::argument) || (tag == "json" && state_ == State::json)) {
    call_.end_value(events);
    state_ = State::call;
  } else if (tag == "call" && in_call()) {
    if (in_value()) ++warnings_;
    end_call(events);
  } else if (tag == "tools" && (in_call() || state_ == State::tools)) {
    if (in_call()) {
      ++warnings_;
      end_call(events);
    }
    state_ = State::after_tools;
  } else if (!(tag == "think" && !options_.thinking)) {
    ++warnings_;  // closes nothing that is open
  }
}

void XtmlParser::end_call(std::vector<ChatEvent>& events) {
  call_.end(events);
  state_ = State::tools;
}

void XtmlParser::end_message(std::vector<Segment> closing, std::vector<ChatEvent>& events) {
  if (marker_ != Marker::none) ++warnings_;
  flush_text(events);
  if (in_call()) {
    ++warnings_;
    end_call(events);
  }
  marker_ = Marker::none;
  state_ = State::ended;
  closing_ = std::move(closing);
}

void XtmlParser::finish(StopCause cause, std::vector<ChatEvent>& events) {
  if (finished_) return;
  // After the tools close nothing can be added to the message, so an end there is a normal one.
  const bool whole = state_ == State::ended || state_ == State::after_tools;
  if (cause == StopCause::stop && state_ != State::ended) end_message(missing_segments(), events);
  if (state_ != State::ended) flush_text(events);
  finished_ = true;
  ChatEvent event;
  event.kind = ChatEvent::Kind::finished;
  if (whole || cause == StopCause::stop) {
    event.reason = calls_ > 0 ? FinishReason::tool_calls : FinishReason::stop;
  } else {
    event.reason = cause == StopCause::length ? FinishReason::length : FinishReason::cancelled;
    event.cut_in_reasoning = state_ == State::think;
  }
  events.push_back(std::move(event));
}

}  // namespace k3
