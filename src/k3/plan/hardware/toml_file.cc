// Our own reader: the packaged libraries assert, rather than check, on some malformed texts (found by the fuzz target).
#include "k3/plan/hardware/toml_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "k3/base/utf8.h"

namespace k3::plan {
namespace {

constexpr size_t kMostName = 100;
constexpr size_t kMostKeys = 1000;  // of a table: names are searched one by one
constexpr int kMostDepth = 32;  // of names and arrays: both are descended by recursion

bool is_key_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

TomlNode node_of(TomlNode::Kind kind, int64_t line) {
  TomlNode node;
  node.kind = kind, node.line = line;
  return node;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  Result<TomlNode> run() {
    TomlNode root = node_of(TomlNode::Kind::table, 1);
    table_ = &root;
    while (skip_lines(), !at_end()) {
      K3_TRY(peek() == '[' ? read_header(&root) : read_assignment());
      K3_TRY(end_line());
    }
    return root;
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  template <class... Arguments>
  Error wrong(fmt::format_string<Arguments...> text, Arguments&&... arguments) const {
    return fail(Code::invalid_argument, "{}:{}: {}", source_, line_,
                fmt::format(text, std::forward<Arguments>(arguments)...));
  }
  // For "X is wanted, not Y".
  std::string here() const {
    if (at_end() || peek() == '\n' || peek() == '\r') return "the end of the line";
    const auto byte = static_cast<unsigned char>(peek());
    return byte >= 0x20 && byte < 0x7f ? fmt::format("'{}'", peek()) : fmt::format("byte {:#04x}", byte);
  }

  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }
  // Spaces, empty lines and comments.
  void skip_lines() {
    for (;;) {
      skip_blanks();
      if (peek() == '#') {
        while (!at_end() && peek() != '\n') ++at_;
      }
      if (peek() == '\r' && peek(1) == '\n') ++at_;
      if (peek() != '\n') return;
      ++at_, ++line_;
    }
  }
  Status end_line() {
    const int64_t line = line_;
    skip_lines();
    return at_end() || line_ > line ? Status() : wrong("the end of the line is wanted, not {}", here());
  }

  Result<std::vector<std::string>> read_name() {
    std::vector<std::string> parts;
    for (;;) {
      skip_blanks();
      const size_t begin = at_;
      while (is_key_char(peek())) ++at_;
      if (at_ == begin) return wrong("a name of letters, digits, _ and - is wanted, not {}", here());
      if (at_ - begin > kMostName) return wrong("a name of more than {} letters", kMostName);
      parts.emplace_back(text_.substr(begin, at_ - begin));
      if (parts.size() > kMostDepth) return wrong("a name of more than {} parts", kMostDepth);
      skip_blanks();
      if (peek() != '.') return parts;
      ++at_;
    }
  }

  Status has_room(const TomlNode& table) const {
    return table.keys.size() < kMostKeys ? Status() : wrong("a table has {} names at most", kMostKeys);
  }

  // A table within `table`, made when it is not there; of an array of tables the last.
  Result<TomlNode*> enter(TomlNode* table, const std::string& key) {
    const auto at = std::find(table->keys.begin(), table->keys.end(), key);
    if (at == table->keys.end()) {
      K3_TRY(has_room(*table));
      table->keys.push_back(key);
      return &table->items.emplace_back(node_of(TomlNode::Kind::table, line_));
    }
    TomlNode* found = &table->items[static_cast<size_t>(at - table->keys.begin())];
    const bool tables =
        found->kind == TomlNode::Kind::array && !found->items.empty() && found->items.back().kind == TomlNode::Kind::table;
    if (tables) found = &found->items.back();
    if (found->kind != TomlNode::Kind::table)
      return wrong("{} is {} already, from line {}", key, toml_kind_name(found->kind), found->line);
    return found;
  }
  Result<TomlNode*> enter_all(TomlNode* table, const std::vector<std::string>& name) {
    for (size_t i = 0; i + 1 < name.size(); ++i) {
      K3_TRY_ASSIGN(table, enter(table, name[i]));
    }
    return table;
  }

  Status read_header(TomlNode* root) {
    const bool of_array = peek(1) == '[';
    at_ += of_array ? 2 : 1;
    K3_TRY_ASSIGN(const std::vector<std::string> name, read_name());
    for (int i = 0; i < (of_array ? 2 : 1); ++i) {
      if (peek() != ']') return wrong("{} is wanted after a table's name, not {}", of_array ? "']]'" : "']'", here());
      ++at_;
    }
    K3_TRY_ASSIGN(TomlNode* const parent, enter_all(root, name));
    const TomlNode* const before = parent->find(name.back());
    if (!of_array) {
      if (before != nullptr) return wrong("{} stands there already, from line {}", name.back(), before->line);
      K3_TRY_ASSIGN(table_, enter(parent, name.back()));
      return {};
    }
    if (before == nullptr) {
      K3_TRY(has_room(*parent));
      parent->keys.push_back(name.back());
      parent->items.push_back(node_of(TomlNode::Kind::array, line_));
    }
    TomlNode& array = parent->items[static_cast<size_t>(std::find(parent->keys.begin(), parent->keys.end(), name.back()) -
                                                        parent->keys.begin())];
    const bool tables =
        array.kind == TomlNode::Kind::array && (array.items.empty() || array.items.back().kind == TomlNode::Kind::table);
    if (!tables) return wrong("{} is {} already, from line {}", name.back(), toml_kind_name(array.kind), array.line);
    table_ = &array.items.emplace_back(node_of(TomlNode::Kind::table, line_));
    return {};
  }

  Status read_assignment() {
    K3_TRY_ASSIGN(const std::vector<std::string> name, read_name());
    if (peek() != '=') return wrong("'=' is wanted after {}, not {}", name.back(), here());
    ++at_;
    K3_TRY_ASSIGN(TomlNode* const table, enter_all(table_, name));
    if (const TomlNode* const before = table->find(name.back()))
      return wrong("{} stands there already, from line {}", name.back(), before->line);
    K3_TRY(has_room(*table));
    K3_TRY_ASSIGN(TomlNode value, read_value(0));
    table->keys.push_back(name.back());
    table->items.push_back(std::move(value));
    return {};
  }

  Result<TomlNode> read_value(int depth) {
    skip_blanks();
    if (peek() == '"' || peek() == '\'') return read_text();
    if (peek() == '[') return read_array(depth);
    if (peek() == '{') return wrong("tables in braces are not read here: write [table]");
    const size_t begin = at_;
    while (is_key_char(peek()) || peek() == '.' || peek() == '+' || peek() == ':') ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word.empty()) return wrong("a value is wanted, not {}", here());
    TomlNode node = node_of(TomlNode::Kind::flag, line_);
    if (word == "true" || word == "false") {
      node.flag = word == "true";
      return node;
    }
    const bool date = word.size() > 4 && is_digit(word[0]) &&
                      (word.find(':') != std::string_view::npos || (is_digit(word[3]) && word[4] == '-'));
    if (date) return wrong("dates and times have no place here");
    const std::optional<double> number = number_of(word);
    if (!number) return wrong("{} is neither a number nor true, false or a string in quotes", word.substr(0, kMostName));
    node.kind = TomlNode::Kind::number, node.number = *number;
    return node;
  }

  // Decimal; "_" between digits is left out. Too large a number is none: infinity is written inf.
  static std::optional<double> number_of(std::string_view word) {
    std::string plain;
    for (size_t i = 0; i < word.size(); ++i) {
      if (word[i] != '_')
        plain += word[i];
      else if (i == 0 || i + 1 == word.size() || !is_digit(word[i - 1]) || !is_digit(word[i + 1]))
        return std::nullopt;
    }
    std::string_view digits = plain;
    const bool minus = digits.starts_with('-');
    if (minus || digits.starts_with('+')) digits.remove_prefix(1);
    if (digits == "inf" || digits == "nan") return digits == "nan" ? std::nan("") : minus ? -HUGE_VAL : HUGE_VAL;
    double value = 0;
    if (digits.empty() || !is_digit(digits.front()) || !is_digit(digits.back())) return std::nullopt;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    return minus ? -value : value;
  }

  Result<TomlNode> read_array(int depth) {
    if (depth >= kMostDepth) return wrong("arrays in arrays, more than {} deep", kMostDepth);
    TomlNode node = node_of(TomlNode::Kind::array, line_);
    ++at_;
    for (skip_lines(); peek() != ']'; skip_lines()) {
      K3_TRY_ASSIGN(TomlNode item, read_value(depth + 1));
      node.items.push_back(std::move(item));
      skip_lines();
      if (peek() == ',')
        ++at_;
      else if (peek() != ']')
        return wrong("',' or ']' is wanted in an array, not {}", at_end() ? "the end of the file" : here());
    }
    ++at_;
    return node;
  }

  Result<TomlNode> read_text() {
    const char quote = peek();
    if (peek(1) == quote && peek(2) == quote) return wrong("strings over several lines are not read here");
    TomlNode node = node_of(TomlNode::Kind::text, line_);
    for (++at_; peek() != quote; ++at_) {
      const auto byte = static_cast<unsigned char>(peek());
      if (at_end() || byte == '\n' || byte == '\r') return wrong("a quote is not closed");
      if ((byte < 0x20 && byte != '\t') || byte == 0x7f)
        return wrong("{} in a string: write \\u{:04x}", here(), static_cast<unsigned>(byte));
      if (quote == '"' && byte == '\\')
        K3_TRY(read_escape(&node.text));
      else
        node.text += peek();
    }
    ++at_;
    return node;
  }

  // Leaves at_ on its last character.
  Status read_escape(std::string* out) {
    ++at_;
    constexpr std::string_view kEscapes = "\"\\bfnrt", kMeanings = "\"\\\b\f\n\r\t";
    if (const size_t which = at_end() ? std::string_view::npos : kEscapes.find(peek()); which != std::string_view::npos) {
      *out += kMeanings[which];
      return {};
    }
    const size_t digits = peek() == 'u' ? 4 : peek() == 'U' ? 8 : 0;
    const std::string_view hex = digits > 0 ? text_.substr(at_ + 1, digits) : std::string_view();
    uint32_t point = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), point, 16);
    const bool whole = digits > 0 && hex.size() == digits && error == std::errc() && end == hex.data() + hex.size();
    if (!whole || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return wrong("an escape that TOML does not have");
    append_utf8(*out, point);
    at_ += digits;
    return {};
  }

  std::string_view text_, source_;
  size_t at_ = 0;
  int64_t line_ = 1;
  TomlNode* table_ = nullptr;  // that assignments go to; valid until the next header, which alone grows what holds it
};

}  // namespace
std::string_view toml_kind_name(TomlNode::Kind kind) {
  switch (kind) {
    case TomlNode::Kind::number: return "a number";
    case TomlNode::Kind::text: return "a string";
    case TomlNode::Kind::flag: return "true or false";
    case TomlNode::Kind::array: return "an array";
    case TomlNode::Kind::table: break;
  }
  return "a table";
}

const TomlNode* TomlNode::find(std::string_view key) const {
  const auto at = std::find(keys.begin(), keys.end(), key);
  return at == keys.end() ? nullptr : &items[static_cast<size_t>(at - keys.begin())];
}

Result<TomlNode> parse_toml(std::string_view text, std::string_view source) {
  if (static_cast<int64_t>(text.size()) > kMostTomlBytes) {
    return fail(Code::invalid_argument, "{}: {} bytes; at most {} are read", source, text.size(), kMostTomlBytes);
  }
  if (const size_t valid = utf8_valid_prefix(text); valid < text.size()) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(valid), '\n');
    return fail(Code::invalid_argument, "{}:{}: invalid UTF-8", source, line);
  }
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // some editors write one
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return Parser(text, source).run();
}

}  // namespace k3::plan
