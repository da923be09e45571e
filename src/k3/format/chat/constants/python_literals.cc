#include "k3/format/chat/constants/python_literals.h"

#include <algorithm>

#include "k3/base/utf8.h"

namespace k3 {
namespace {

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         static_cast<uint8_t>(c) >= 0x80;
}

struct Prefix {
  bool raw = false, bytes = false, format = false;
};

class Scanner {
 public:
  Scanner(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  Result<std::vector<std::string>> scan() {
    if (const size_t valid = utf8_valid_prefix(text_); valid != text_.size()) {
      pos_ = valid;
      return error("invalid UTF-8");
    }
    while (pos_ < text_.size()) K3_TRY(step());
    flush();
    return std::move(found_);
  }

 private:
  Error error(std::string_view what) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(std::min(pos_, text_.size())), '\n');
    return fail(Code::corrupt, "{}:{}: {}", source_, line, what);
  }
  bool at(std::string_view what) const { return text_.substr(pos_, what.size()) == what; }

  // Ends the current run of text (an f-string field, or the end of a group of adjacent literals).
  void flush() {
    if (!run_.empty()) found_.push_back(std::move(run_));
    run_.clear();
  }

  Status step() {
    const char c = text_[pos_];
    if (c == '#') {
      pos_ = std::min(text_.find('\n', pos_), text_.size());
      return {};
    }
    if (c == '\\' && (at("\\\n") || at("\\\r\n"))) {  // line continuation keeps literals adjacent
      pos_ += at("\\\n") ? 2 : 3;
      return {};
    }
    if (c == '\n' || c == ' ' || c == '\t' || c == '\r' || c == '\f') {
      if (c == '\n' && depth_ == 0) flush();
      ++pos_;
      return {};
    }
    if (c == '"' || c == '\'') return literal(Prefix{});
    if (is_name_char(c)) return name();
    flush();
    if (c == '(' || c == '[' || c == '{') ++depth_;
    if ((c == ')' || c == ']' || c == '}') && depth_ > 0) --depth_;
    ++pos_;
    return {};
  }

  Status name() {
    const size_t begin = pos_;
    while (pos_ < text_.size() && is_name_char(text_[pos_])) ++pos_;
    const std::string_view word = text_.substr(begin, pos_ - begin);
    const bool quote = pos_ < text_.size() && (text_[pos_] == '"' || text_[pos_] == '\'');
    Prefix prefix;
    bool is_prefix = quote && word.size() <= 2;
    for (const char c : word) {
      const char lower = static_cast<char>(c | 32);
      if (lower == 'r') {
        prefix.raw = true;
      } else if (lower == 'b') {
        prefix.bytes = true;
      } else if (lower == 'f') {
        prefix.format = true;
      } else if (lower != 'u') {
        is_prefix = false;
      }
    }
    if (is_prefix) return literal(prefix);
    flush();
    return {};
  }

  Status literal(Prefix prefix) {
    const bool triple = at("\"\"\"") || at("'''");
    const std::string_view quote = text_.substr(pos_, triple ? 3 : 1);
    pos_ += quote.size();
    while (true) {
      if (pos_ >= text_.size()) return error("a string does not end");
      if (at(quote)) {
        pos_ += quote.size();
        return {};
      }
      const char c = text_[pos_];
      if (c == '\n' && !triple) return error("a string does not end on its line");
      if (c == '\\') {
        K3_TRY(escape(prefix));
      } else if (prefix.format && (c == '{' || c == '}')) {
        K3_TRY(brace());
      } else {
        run_.push_back(c);
        ++pos_;
      }
    }
  }

  Status brace() {
    if (at("{{") || at("}}")) {
      run_.push_back(text_[pos_]);
      pos_ += 2;
      return {};
    }
    if (text_[pos_] == '}') return error("a single '}' in an f-string");
    flush();
    // The replacement field: skip to its closing brace; strings inside may hold braces.
    int open = 0;
    while (pos_ < text_.size()) {
      const char c = text_[pos_++];
      if (c == '{') ++open;
      if (c == '}' && --open == 0) return {};
      if (c == '\n') continue;
      if (c == '"' || c == '\'') {
        const size_t end = text_.find(c, pos_);
        if (end == std::string_view::npos) break;
        pos_ = end + 1;
      }
    }
    return error("a replacement field of an f-string does not end");
  }

  Status escape(Prefix prefix) {
    ++pos_;
    if (pos_ >= text_.size()) return error("a string does not end");
    const char c = text_[pos_];
    if (prefix.format && (c == '{' || c == '}')) {  // a backslash does not quote a brace
      run_.push_back('\\');
      return {};
    }
    if (prefix.raw) {  // the backslash stays, and a quote after it does not end the string
      run_.push_back('\\');
      run_.push_back(c);
      ++pos_;
      return {};
    }
    ++pos_;
    constexpr std::string_view kNames = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t which = kNames.find(c); which != std::string_view::npos) {
      run_.push_back(kValues[which]);
      return {};
    }
    if (c == '\n') return {};
    if (c == '\r' && at("\n")) {
      ++pos_;
      return {};
    }
    if (c >= '0' && c <= '7') return octal(c);
    if (c == 'x') return hex(2);
    if (c == 'u' && !prefix.bytes) return hex(4);
    if (c == 'U' && !prefix.bytes) return hex(8);
    if (c == 'N' && !prefix.bytes && at("{")) {
      // Named characters would need the Unicode name table; the run cannot match a sentence any more.
      pos_ = std::min(text_.find('}', pos_), text_.size() - 1) + 1;
      flush();
      return {};
    }
    run_.push_back('\\');  // unknown escapes are kept
    run_.push_back(c);
    return {};
  }

  Status octal(char first) {
    uint32_t code = static_cast<uint32_t>(first - '0');
    for (int i = 0; i < 2 && pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '7'; ++i) {
      code = code * 8 + static_cast<uint32_t>(text_[pos_++] - '0');
    }
    append_utf8(run_, code);
    return {};
  }

  Status hex(int digits) {
    uint64_t code = 0;
    for (int i = 0; i < digits; ++i, ++pos_) {
      const char c = pos_ < text_.size() ? text_[pos_] : '\0';
      const char lower = static_cast<char>(c | 32);
      if (c >= '0' && c <= '9') {
        code = code << 4 | static_cast<uint64_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        code = code << 4 | static_cast<uint64_t>(lower - 'a' + 10);
      } else {
        return error("an escape in a string lacks hex digits");
      }
    }
    if (code > 0x10FFFF) return error("an escape in a string is above U+10FFFF");
    append_utf8(run_, static_cast<uint32_t>(code));
    return {};
  }

  std::string_view text_, source_;
  size_t pos_ = 0;
  int depth_ = 0;  // open brackets: a line end inside them does not end a group of literals
  std::string run_;
  std::vector<std::string> found_;
};

}  // namespace

Result<std::vector<std::string>> python_string_literals(std::string_view text, std::string_view source) {
  return Scanner(text, source).scan();
}

}  // namespace k3
