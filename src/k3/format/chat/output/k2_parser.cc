#include "k3/format/chat/output/k2_parser.h"

#include <algorithm>

#include "k3/base/utf8.h"

namespace k3 {
namespace {

ChatEvent call_event(ChatEvent::Kind kind, int index, std::string text = {}) {
  ChatEvent event;
  event.kind = kind;
  event.call_index = index;
  event.text = std::move(text);
  return event;
}

// "functions.NAME:INDEX" -> NAME; the prefix and the index may be missing.
std::string name_of(std::string_view id) {
  if (id.starts_with("functions.")) id.remove_prefix(10);
  const size_t colon = id.rfind(':');
  if (colon != std::string_view::npos) id = id.substr(0, colon);
  return std::string(id);
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

}  // namespace

K2Parser::K2Parser(const Tokenizer& tokenizer, ParserOptions options)
    : tokenizer_(&tokenizer),
      options_(std::move(options)),
      decoder_(tokenizer),
      end_id_(tokenizer.special("<|im_end|>")),
      section_begin_(tokenizer.special("<|tool_calls_section_begin|>")),
      section_end_(tokenizer.special("<|tool_calls_section_end|>")),
      call_begin_(tokenizer.special("<|tool_call_begin|>")),
      argument_begin_(tokenizer.special("<|tool_call_argument_begin|>")),
      call_end_(tokenizer.special("<|tool_call_end|>")) {}

void K2Parser::push(int32_t id, std::vector<ChatEvent>& events) {
  if (state_ == State::ended || finished_ || id < 0 || id >= tokenizer_->vocab_size()) return;
  if (!tokenizer_->is_special(id)) return text(decoder_.push(id), events);
  flush(events);
  const bool in_call = state_ == State::header || state_ == State::arguments || state_ == State::dropped;
  if (id == end_id_) {
    end_call(events);
    end_seen_ = true;
    state_ = State::ended;
  } else if (id == section_begin_ && state_ == State::text) {
    state_ = State::section;
  } else if (id == call_begin_ && (state_ == State::section || in_call)) {
    end_call(events);
    state_ = State::header;
    header_.clear();
  } else if (id == argument_begin_ && state_ == State::header) {
    begin_arguments(events);
  } else if (id == call_end_ && in_call) {
    end_call(events);
  } else if (id == section_end_ && (state_ == State::section || in_call)) {
    end_call(events);
    state_ = State::after_section;
  } else {
    ++warnings_;
  }
}

void K2Parser::flush(std::vector<ChatEvent>& events) { text(decoder_.finish(), events); }

void K2Parser::text(std::string piece, std::vector<ChatEvent>& events) {
  if (piece.empty()) return;
  if (state_ == State::text) {
    events.push_back(call_event(ChatEvent::Kind::content, 0, std::move(piece)));
  } else if (state_ == State::header) {
    header_ += piece;
  } else if (state_ == State::arguments) {
    arguments_empty_ = false;
    events.push_back(call_event(ChatEvent::Kind::call_arguments, calls_ - 1, std::move(piece)));
  }
}

void K2Parser::begin_arguments(std::vector<ChatEvent>& events) {
  std::string id(trimmed(header_));
  const std::string name = name_of(id);
  const auto& declared = options_.tools;
  const bool known = !options_.strict_tools || std::find(declared.begin(), declared.end(), name) != declared.end();
  if (name.empty() || !known) {
    ++warnings_;
    state_ = State::dropped;
    return;
  }
  if (id == name) id = "functions." + name + ":" + std::to_string(options_.first_call_index + calls_);
  ChatEvent event = call_event(ChatEvent::Kind::call_start, calls_++);
  event.call_id = std::move(id);
  event.call_name = name;
  events.push_back(std::move(event));
  arguments_empty_ = true;
  state_ = State::arguments;
}

void K2Parser::end_call(std::vector<ChatEvent>& events) {
  if (state_ == State::header) ++warnings_;  // a call without arguments marker has no known name
  if (state_ == State::arguments) {
    if (arguments_empty_) events.push_back(call_event(ChatEvent::Kind::call_arguments, calls_ - 1, "{}"));
    events.push_back(call_event(ChatEvent::Kind::call_end, calls_ - 1));
  }
  if (state_ == State::header || state_ == State::arguments || state_ == State::dropped) state_ = State::section;
}

void K2Parser::finish(StopCause cause, std::vector<ChatEvent>& events) {
  if (finished_) return;
  flush(events);
  const bool whole = state_ == State::ended || state_ == State::after_section;
  if (cause == StopCause::stop && state_ != State::ended) {
    before_end_ = closing();
    end_call(events);
    state_ = State::ended;
  }
  finished_ = true;
  ChatEvent event = call_event(ChatEvent::Kind::finished, 0);
  event.reason = cause == StopCause::length ? FinishReason::length : FinishReason::cancelled;
  if (whole || cause == StopCause::stop) event.reason = calls_ > 0 ? FinishReason::tool_calls : FinishReason::stop;
  events.push_back(std::move(event));
}

std::vector<Segment> K2Parser::closing() const {
  std::vector<Segment> out;
  if (end_seen_) return out;
  if (state_ == State::ended) return before_end_;
  const auto special = [&](std::string_view name) { out.push_back({Segment::Kind::special, std::string(name)}); };
  if (state_ == State::header) special("<|tool_call_argument_begin|>");
  if (state_ == State::header || state_ == State::arguments || state_ == State::dropped) special("<|tool_call_end|>");
  if (state_ != State::text && state_ != State::after_section) special("<|tool_calls_section_end|>");
  special("<|im_end|>");
  return out;
}

}  // namespace k3
