// A small streaming JSON writer: appends to a string, keeps commas and nesting right, escapes text.
// Invalid UTF-8 in a string value is repaired with U+FFFD, so the output is always valid JSON.
// Non-finite numbers are written as null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace k3 {

void append_json_string(std::string& out, std::string_view text);

class JsonWriter {
 public:
  // indent 0: one line.
  explicit JsonWriter(int indent = 0) : indent_(indent) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(bool flag);
  JsonWriter& value(int64_t number);
  JsonWriter& value(int number) { return value(static_cast<int64_t>(number)); }
  JsonWriter& value(uint64_t number);
  JsonWriter& value(double number);  // shortest form that reads back to the same double
  JsonWriter& null();
  JsonWriter& raw(std::string_view json);  // one value, written as it is

  template <class T>
  JsonWriter& field(std::string_view name, const T& content) {
    return key(name).value(content);
  }

  const std::string& text() const { return out_; }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void before_value();
  void newline();

  std::string out_;
  std::vector<bool> has_items_;
  bool after_key_ = false;
  int indent_;
};

}  // namespace k3
