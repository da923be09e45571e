// Purpose:  the arguments of one tool call as JSON text that grows while the model writes, internal to the XTML parser.
// Shapes:   none.
// Units:    none.
// Memory:   buffers one non-string value or one json block.
// Threads:  one stream belongs to one thread at a time.
// Errors:   none; repairs are counted in warnings().
// Source:   api.md 7.3 (JSON style, string streaming), 7.4 (rows on keys, values and json blocks).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "k3/format/chat/output/chat_events.h"

namespace k3 {

class CallStream {
 public:
  void begin(std::string name, std::string id, int index, std::vector<ChatEvent>& events);
  void drop();  // the call is not emitted: everything up to end() is ignored
  void begin_argument(const std::optional<std::string>& key, std::string_view type, std::vector<ChatEvent>& events);
  void begin_json();
  void text(std::string_view piece, std::vector<ChatEvent>& events);  // whole code points
  void end_value(std::vector<ChatEvent>& events);
  void end(std::vector<ChatEvent>& events);  // the arguments are one JSON object from here on
  int64_t warnings() const { return warnings_; }

 private:
  enum class Value { none, string, buffered, json, dropped };
  void emit(std::string text, std::vector<ChatEvent>& events);
  std::string lead_in(const std::string& key);

  int index_ = 0;
  bool dropped_ = false, opened_ = false, whole_ = false, emitted_ = false;
  Value value_ = Value::none;
  std::string key_, buffer_;
  std::set<std::string> keys_;
  int64_t warnings_ = 0;
};

}  // namespace k3
