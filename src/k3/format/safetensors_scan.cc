#include "k3/format/safetensors_scan.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <utility>

#include "k3/base/json_writer.h"
#include "k3/base/utf8.h"

namespace k3::safetensors {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Length of the run of plain ASCII (no quote, backslash, control character) at the start, in steps of 8 bytes: a
// byte's top bit is set in `special` when it is one of those; borrows can only add false alarms above a true one.
size_t plain_run(const char* text, size_t size) {
  constexpr uint64_t kOnes = 0x0101010101010101u, kTops = kOnes << 7;
  const auto below = [](uint64_t word, uint64_t limit) { return (word - kOnes * limit) & ~word; };
  size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text + at, 8);
    const uint64_t special = word | below(word, 0x20) | below(word ^ kOnes * '"', 1) | below(word ^ kOnes * '\\', 1);
    if (special & kTops) break;
  }
  return at;
}

}  // namespace

std::string shown(std::string_view name) {
  constexpr size_t kLimit = 160;
  std::string text;
  append_json_string(text, name.substr(0, kLimit));
  text = text.substr(1, text.size() - 2);
  if (name.size() > kLimit) text += fmt::format("... ({} bytes)", name.size());
  return text;
}

bool JsonScanner::fail_here(std::string what) {
  if (failed_) return false;
  failed_ = true;
  message_ = fmt::format("{} (at byte {})", what, position());
  return false;
}

void JsonScanner::skip_space() {
  while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
}

char JsonScanner::peek() {
  skip_space();
  return at_ == end_ ? '\0' : *at_;
}

bool JsonScanner::open(char bracket) {
  if (failed_) return false;
  if (peek() != bracket) {
    return fail_here(fmt::format("expected {}", bracket == '{' ? "an object" : "an array"));
  }
  if (depth_ == kMaxDepth) return fail_here(fmt::format("nested more than {} levels deep", kMaxDepth));
  ++at_;
  first_[static_cast<size_t>(depth_++)] = true;
  return true;
}

bool JsonScanner::begin_object() { return open('{'); }
bool JsonScanner::begin_array() { return open('['); }

bool JsonScanner::next_item(char close_bracket) {
  if (failed_) return false;
  bool& first = first_[static_cast<size_t>(depth_ - 1)];
  const char next = peek();
  if (next == close_bracket) {
    ++at_;
    --depth_;
    return false;
  }
  if (!first) {
    if (next != ',')
      return fail_here(next == 0 ? "the text ends inside" : fmt::format("expected ',' or '{}'", close_bracket));
    ++at_;
    skip_space();
  }
  first = false;
  return true;
}

bool JsonScanner::next_element() { return next_item(']'); }

bool JsonScanner::next_member(std::string_view* key) {
  if (!next_item('}')) return false;
  if (peek() != '"') return fail_here("expected a key in quotes");
  if (!read_string(key)) return false;
  if (peek() != ':') return fail_here("expected ':' after a key");
  ++at_;
  return true;
}

bool JsonScanner::read_hex4(uint32_t* code) {
  if (end_ - at_ < 4) return fail_here("the text ends inside an escape");
  *code = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = *at_++;
    const int digit = is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return fail_here("bad \\u escape");
    *code = *code * 16 + static_cast<uint32_t>(digit);
  }
  return true;
}

// The decoded form is never longer than the escape (6 bytes give at most 3, a pair of 12 gives 4), so it can be
// written over the bytes already read.
bool JsonScanner::decode_escape(char** out) {
  if (at_ == end_) return fail_here("the text ends inside a string");
  const char c = *at_++;
  switch (c) {
    case '"':
    case '\\':
    case '/': *(*out)++ = c; return true;
    case 'b': *(*out)++ = '\b'; return true;
    case 'f': *(*out)++ = '\f'; return true;
    case 'n': *(*out)++ = '\n'; return true;
    case 'r': *(*out)++ = '\r'; return true;
    case 't': *(*out)++ = '\t'; return true;
    case 'u': break;
    default: return fail_here("unknown escape in a string");
  }
  uint32_t code = 0;
  if (!read_hex4(&code)) return false;
  if (code >= 0xDC00 && code <= 0xDFFF) return fail_here("a \\u escape is half of a surrogate pair");
  if (code >= 0xD800 && code <= 0xDBFF) {
    uint32_t low = 0;
    if (end_ - at_ < 6 || at_[0] != '\\' || at_[1] != 'u') return fail_here("a \\u escape is half of a surrogate pair");
    at_ += 2;
    if (!read_hex4(&low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return fail_here("a \\u escape is half of a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  std::string bytes;
  append_utf8(bytes, code);
  for (const char byte : bytes) *(*out)++ = byte;
  return true;
}

bool JsonScanner::read_string(std::string_view* text) {
  if (failed_) return false;
  if (peek() != '"') return fail_here("expected a string");
  char* const start = ++at_;
  at_ += plain_run(at_, static_cast<size_t>(end_ - at_));
  char* out = at_;
  unsigned char seen = 0;
  while (at_ != end_) {
    const char c = *at_;
    if (c == '"') break;
    if (static_cast<unsigned char>(c) < 0x20) return fail_here("control character in a string");
    ++at_;
    if (c == '\\') {
      if (!decode_escape(&out)) return false;
      continue;
    }
    seen |= static_cast<unsigned char>(c);
    if (out != at_ - 1) *out = c;
    ++out;
  }
  if (at_ == end_) return fail_here("the text ends inside a string");
  ++at_;
  *text = std::string_view(start, static_cast<size_t>(out - start));
  if (seen >= 0x80 && !is_utf8(*text)) return fail_here(fmt::format("the string '{}' is not valid UTF-8", shown(*text)));
  return true;
}

bool JsonScanner::read_count(int64_t* count) {
  if (failed_) return false;
  const char first = peek();
  if (first == '-') return fail_here("expected a count of zero or more, found a negative number");
  if (!is_digit(first)) return fail_here("expected a whole number");
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const char* const start = at_;
  int64_t value = 0;
  while (at_ != end_ && is_digit(*at_)) {
    const int64_t digit = *at_ - '0';
    if (value > (kMax - digit) / 10) return fail_here("the number does not fit in 63 bits");
    value = value * 10 + digit;
    ++at_;
  }
  if (first == '0' && at_ - start > 1) return fail_here("a number starts with a superfluous zero");
  if (at_ != end_ && (*at_ == '.' || *at_ == 'e' || *at_ == 'E'))
    return fail_here("expected a whole number, found a fraction");
  *count = value;
  return true;
}

bool JsonScanner::skip_number() {
  const auto digits = [this] {
    const char* const start = at_;
    while (at_ != end_ && is_digit(*at_)) ++at_;
    return at_ - start;
  };
  if (*at_ == '-') ++at_;
  const bool zero = at_ != end_ && *at_ == '0';
  const auto whole = digits();
  if (whole == 0 || (zero && whole > 1)) return fail_here("malformed number");
  if (at_ != end_ && *at_ == '.') {
    ++at_;
    if (digits() == 0) return fail_here("malformed number");
  }
  if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
    ++at_;
    if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
    if (digits() == 0) return fail_here("malformed number");
  }
  return true;
}

bool JsonScanner::skip_word(std::string_view word) {
  if (static_cast<size_t>(end_ - at_) < word.size() || std::string_view(at_, word.size()) != word) {
    return fail_here("expected a value");
  }
  at_ += word.size();
  return true;
}

bool JsonScanner::skip_scalar() {
  std::string_view ignored;
  switch (peek()) {
    case '"': return read_string(&ignored);
    case 't': return skip_word("true");
    case 'f': return skip_word("false");
    case 'n': return skip_word("null");
    default:
      if (at_ != end_ && (*at_ == '-' || is_digit(*at_))) return skip_number();
      return fail_here(at_ == end_ ? "the text ends where a value is expected" : "expected a value");
  }
}

bool JsonScanner::skip_value() {
  if (failed_) return false;
  const int depth = depth_;
  std::array<char, kMaxDepth> closer{};
  do {
    const char next = peek();
    if (next == '{' || next == '[') {
      if (!open(next)) return false;
      closer[static_cast<size_t>(depth_ - 1)] = next == '{' ? '}' : ']';
    } else if (!skip_scalar()) {
      return false;
    }
    // Leave every container that ends here; stop in front of the next value.
    while (depth_ > depth) {
      std::string_view key;
      const bool more = closer[static_cast<size_t>(depth_ - 1)] == '}' ? next_member(&key) : next_element();
      if (failed_) return false;
      if (more) break;
    }
  } while (depth_ > depth);
  return true;
}

bool JsonScanner::finish() {
  if (failed_) return false;
  skip_space();
  return at_ == end_ || fail_here("more text after the end of the JSON value");
}

}  // namespace k3::safetensors
