// Internal to format.
//
// A strict pull scanner for JSON that decodes strings inside the text it is given, so an index of half a million
// names costs no allocation per token. Strict: one value, no comments, no trailing commas, no control characters
// in strings, valid UTF-8 and escapes, at most 32 levels. Errors are sticky; nothing throws.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace k3::safetensors {

// A name as it may stand in a message: control characters escaped, cut to 160 bytes.
std::string shown(std::string_view name);

class JsonScanner {
 public:
  static constexpr int kMaxDepth = 32;

  JsonScanner(char* text, size_t size) : begin_(text), at_(text), end_(text + size) {}

  // begin_object(), then next_member() until it is false (closing brace, or failed()); the caller reads or skips
  // one value after each true.
  bool begin_object();
  bool next_member(std::string_view* key);
  bool begin_array();
  bool next_element();

  // The decoded text stays valid until its bytes are overwritten by the caller (nothing before position() is
  // read again).
  bool read_string(std::string_view* text);
  bool read_count(int64_t* count);  // a non-negative integer in plain digits, at most INT64_MAX
  bool skip_value();
  bool finish();  // only whitespace may follow

  char peek();  // first character of the next value; 0 at the end
  bool failed() const { return failed_; }
  const std::string& message() const { return message_; }
  size_t position() const { return static_cast<size_t>(at_ - begin_); }
  bool fail_here(std::string what);  // always false

 private:
  void skip_space();
  bool open(char bracket);
  bool next_item(char close_bracket);
  bool decode_escape(char** out);
  bool read_hex4(uint32_t* code);
  bool skip_number();
  bool skip_scalar();
  bool skip_word(std::string_view word);

  char* begin_;
  char* at_;
  char* end_;
  std::array<bool, kMaxDepth> first_{};
  int depth_ = 0;
  bool failed_ = false;
  std::string message_;
};

}  // namespace k3::safetensors
