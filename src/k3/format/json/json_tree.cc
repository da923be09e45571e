#include "k3/format/json/json_tree.h"

#include <algorithm>

#include "k3/base/utf8.h"

namespace k3 {
namespace {

class Parser {
 public:
  Parser(std::string_view text, DuplicateKeys duplicates) : text_(text), duplicates_(duplicates) {}

  Result<JsonNode> document() {
    if (const size_t valid = utf8_valid_prefix(text_); valid != text_.size()) {
      return fail(Code::invalid_argument, "invalid UTF-8 at byte {}", valid);
    }
    JsonNode root;
    space();
    K3_TRY(value(root, 0));
    space();
    if (pos_ != text_.size()) return error("bytes after the end of the JSON value");
    return root;
  }

 private:
  Error error(std::string_view what) const {
    return fail(Code::invalid_argument, "invalid JSON at byte {}: {}", pos_, what);
  }
  bool at(char c) const { return pos_ < text_.size() && text_[pos_] == c; }
  bool digit() const { return pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9'; }
  void space() {
    while (at(' ') || at('\n') || at('\t') || at('\r')) ++pos_;
  }

  Status value(JsonNode& out, int depth) {
    if (pos_ >= text_.size()) return error("the text ends where a value is expected");
    if (depth > kMaxJsonDepth) return error("nested too deeply");
    if (++count_ > kMaxJsonValues) return error("too many values");
    const size_t begin = pos_;
    switch (text_[pos_]) {
      case '{': K3_TRY(object(out, depth)); break;
      case '[': K3_TRY(array(out, depth)); break;
      case '"':
        out.kind = JsonNode::Kind::string;
        K3_TRY(string(out.text));
        break;
      case 't': K3_TRY(word(out, "true", JsonNode::Kind::boolean)); break;
      case 'f': K3_TRY(word(out, "false", JsonNode::Kind::boolean)); break;
      case 'n': K3_TRY(word(out, "null", JsonNode::Kind::null)); break;
      default: K3_TRY(number(out));
    }
    out.raw = text_.substr(begin, pos_ - begin);
    return {};
  }

  Status word(JsonNode& out, std::string_view name, JsonNode::Kind kind) {
    if (text_.substr(pos_, name.size()) != name) return error("unknown word");
    pos_ += name.size();
    out.kind = kind;
    out.flag = name == "true";
    return {};
  }

  Status number(JsonNode& out) {
    out.kind = JsonNode::Kind::number;
    if (at('-')) ++pos_;
    if (!digit()) return error("a value is expected");
    if (at('0')) {
      ++pos_;
      if (digit()) return error("a number may not start with 0");
    }
    while (digit()) ++pos_;
    if (at('.')) {
      ++pos_;
      if (!digit()) return error("digits are expected after the decimal point");
      while (digit()) ++pos_;
    }
    if (at('e') || at('E')) {
      ++pos_;
      if (at('+') || at('-')) ++pos_;
      if (!digit()) return error("digits are expected in the exponent");
      while (digit()) ++pos_;
    }
    return {};
  }

  Result<uint32_t> hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++pos_) {
      if (pos_ >= text_.size()) return error("the text ends inside a \\u escape");
      const char c = text_[pos_];
      uint32_t digit_value = 0;
      if (c >= '0' && c <= '9') {
        digit_value = static_cast<uint32_t>(c - '0');
      } else if ((c | 32) >= 'a' && (c | 32) <= 'f') {
        digit_value = static_cast<uint32_t>((c | 32) - 'a') + 10;
      } else {
        return error("a \\u escape needs four hex digits");
      }
      code = code << 4 | digit_value;
    }
    return code;
  }

  Status unicode_escape(std::string& out) {
    K3_TRY_ASSIGN(uint32_t code, hex4());
    if (code >= 0xDC00 && code < 0xE000) return error("a lone surrogate escape");
    if (code >= 0xD800 && code < 0xDC00) {
      if (text_.substr(pos_, 2) != "\\u") return error("a lone surrogate escape");
      pos_ += 2;
      K3_TRY_ASSIGN(const uint32_t low, hex4());
      if (low < 0xDC00 || low >= 0xE000) return error("a lone surrogate escape");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(out, code);
    return {};
  }

  Status string(std::string& out) {
    ++pos_;
    while (true) {
      const size_t begin = pos_;
      while (pos_ < text_.size() && text_[pos_] != '"' && text_[pos_] != '\\' && static_cast<uint8_t>(text_[pos_]) >= 0x20)
        ++pos_;
      out.append(text_, begin, pos_ - begin);
      if (pos_ >= text_.size()) return error("the text ends inside a string");
      if (at('"')) {
        ++pos_;
        return {};
      }
      if (!at('\\')) return error("a control character inside a string");
      ++pos_;
      if (pos_ >= text_.size()) return error("the text ends inside a string");
      const char escape = text_[pos_++];
      if (escape == 'u') {
        K3_TRY(unicode_escape(out));
        continue;
      }
      constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
      const size_t which = kNames.find(escape);
      if (which == std::string_view::npos) return error("an unknown escape inside a string");
      out.push_back(kValues[which]);
    }
  }

  Status array(JsonNode& out, int depth) {
    out.kind = JsonNode::Kind::array;
    ++pos_;
    space();
    if (at(']')) {
      ++pos_;
      return {};
    }
    while (true) {
      space();
      K3_TRY(value(out.items.emplace_back(), depth + 1));
      space();
      if (at(',')) {
        ++pos_;
        continue;
      }
      if (!at(']')) return error("',' or ']' is expected");
      ++pos_;
      return {};
    }
  }

  Status object(JsonNode& out, int depth) {
    out.kind = JsonNode::Kind::object;
    ++pos_;
    space();
    if (at('}')) {
      ++pos_;
      return {};
    }
    while (true) {
      space();
      if (!at('"')) return error("a key is expected");
      K3_TRY(string(out.keys.emplace_back()));
      space();
      if (!at(':')) return error("':' is expected");
      ++pos_;
      space();
      K3_TRY(value(out.items.emplace_back(), depth + 1));
      space();
      if (at(',')) {
        ++pos_;
        continue;
      }
      if (!at('}')) return error("',' or '}' is expected");
      ++pos_;
      return duplicates_ == DuplicateKeys::refuse ? unique_keys(out) : Status();
    }
  }

  Status unique_keys(const JsonNode& object) const {
    std::vector<std::string_view> sorted(object.keys.begin(), object.keys.end());
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end())
      return fail(Code::invalid_argument, "the object that ends at byte {} has the key '{}' twice", pos_, *twice);
    return {};
  }

  std::string_view text_;
  DuplicateKeys duplicates_;
  size_t pos_ = 0;
  int64_t count_ = 0;
};

}  // namespace

const JsonNode* JsonNode::find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

const JsonNode* JsonNode::find_set(std::string_view key) const {
  const JsonNode* node = find(key);
  return node != nullptr && node->is_null() ? nullptr : node;
}

std::string_view json_kind_name(JsonNode::Kind kind) {
  switch (kind) {
    case JsonNode::Kind::null: return "null";
    case JsonNode::Kind::boolean: return "a boolean";
    case JsonNode::Kind::number: return "a number";
    case JsonNode::Kind::string: return "a string";
    case JsonNode::Kind::array: return "an array";
    case JsonNode::Kind::object: return "an object";
  }
  return "?";
}

Result<JsonNode> parse_json(std::string_view text, DuplicateKeys duplicates) { return Parser(text, duplicates).document(); }

}  // namespace k3
