#include "k3/format/chat/output/call_stream.h"

#include "k3/base/json_writer.h"
#include "k3/format/json/json_tree.h"

namespace k3 {
namespace {

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

}  // namespace

void CallStream::begin(std::string name, std::string id, int index, std::vector<ChatEvent>& events) {
  const int64_t warnings = warnings_;
  *this = CallStream();
  warnings_ = warnings;
  index_ = index;
  ChatEvent event;
  event.kind = ChatEvent::Kind::call_start;
  event.call_index = index;
  event.call_id = std::move(id);
  event.call_name = std::move(name);
  events.push_back(std::move(event));
}

void CallStream::drop() {
  dropped_ = true;
  ++warnings_;
}

void CallStream::emit(std::string text, std::vector<ChatEvent>& events) {
  if (text.empty()) return;
  emitted_ = true;
  ChatEvent event;
  event.kind = ChatEvent::Kind::call_arguments;
  event.call_index = index_;
  event.text = std::move(text);
  events.push_back(std::move(event));
}

std::string CallStream::lead_in(const std::string& key) {
  std::string out = opened_ ? ", " : "{";
  opened_ = true;
  return out + quoted(key) + ": ";
}

void CallStream::begin_argument(const std::optional<std::string>& key, std::string_view type,
                                std::vector<ChatEvent>& events) {
  buffer_.clear();
  value_ = Value::dropped;
  if (dropped_) return;
  // Of a key given twice the first is kept: it may have been streamed already. A json block is the whole object.
  if (!key || whole_ || !keys_.insert(*key).second) {
    ++warnings_;
    return;
  }
  if (type == "string" || type.empty()) {
    value_ = Value::string;
    emit(lead_in(*key) + "\"", events);
  } else {
    value_ = Value::buffered;
    key_ = *key;
  }
}

void CallStream::begin_json() {
  buffer_.clear();
  value_ = Value::dropped;
  if (dropped_) return;
  if (opened_ || whole_) {
    ++warnings_;
    return;
  }
  whole_ = true;
  value_ = Value::json;
}

void CallStream::text(std::string_view piece, std::vector<ChatEvent>& events) {
  if (value_ == Value::string) {
    const std::string escaped = quoted(piece);
    emit(escaped.substr(1, escaped.size() - 2), events);
  } else if (value_ == Value::buffered || value_ == Value::json) {
    buffer_ += piece;
  }
}

void CallStream::end_value(std::vector<ChatEvent>& events) {
  const Value value = value_;
  value_ = Value::none;
  const std::string_view body = trimmed(buffer_);
  if (value == Value::string) {
    emit("\"", events);
  } else if (value == Value::buffered) {
    const bool valid = parse_json(body, DuplicateKeys::keep).ok();
    if (!valid) ++warnings_;
    emit(lead_in(key_) + (valid ? std::string(body) : quoted(buffer_)), events);
  } else if (value == Value::json) {
    const auto parsed = parse_json(body, DuplicateKeys::keep);
    const bool object = parsed.ok() && parsed->is_object();
    if (!object) ++warnings_;
    emit(object ? std::string(body) : buffer_, events);
  }
}

void CallStream::end(std::vector<ChatEvent>& events) {
  if (value_ != Value::none) end_value(events);
  if (!dropped_) {
    if (opened_) emit("}", events);
    if (!emitted_) emit("{}", events);
    ChatEvent event;
    event.kind = ChatEvent::Kind::call_end;
    event.call_index = index_;
    events.push_back(std::move(event));
  }
  const int64_t warnings = warnings_;
  *this = CallStream();
  warnings_ = warnings;
}

}  // namespace k3
