#include "k3/format/grammar/front/ebnf.h"

#include <algorithm>
#include <map>

#include "k3/base/utf8.h"
#include "k3/format/grammar/text/regex.h"

namespace k3::grammar {
namespace {

constexpr uint32_t kExpanded = 16;  // more repeats than this are counted on the stack
constexpr int kMaxGroups = 100;
constexpr size_t kMaxNodes = 300'000;
constexpr size_t kMaxTextBytes = size_t{4} << 20;  // a byte of a literal costs about 100 before its nodes are counted

class EbnfParser {
 public:
  EbnfParser(Builder& builder, std::string_view text) : b_(builder), text_(text) {}

  Result<RuleId> parse() {
    if (text_.size() > kMaxTextBytes) {
      return fail(Code::exhausted, "the grammar of {} bytes is longer than {}", text_.size(), kMaxTextBytes);
    }
    if (!is_utf8(text_)) return error("the grammar is not UTF-8");
    space(true);
    while (pos_ < text_.size()) {
      K3_TRY(rule());
      space(true);
    }
    for (const auto& [name, entry] : rules_) {
      if (!entry.defined) return fail(Code::invalid_argument, "grammar: rule '{}' is used but not defined", name);
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return fail(Code::invalid_argument, "grammar: there is no rule 'root'");
    return root->second.id;
  }

 private:
  struct Entry {
    RuleId id = 0;
    bool defined = false;
  };

  Error error(std::string_view what, Code code = Code::invalid_argument) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(std::min(pos_, text_.size())), '\n');
    return fail(code, "grammar line {}: {}", line, what);
  }
  bool at(char c) const { return pos_ < text_.size() && text_[pos_] == c; }
  bool take(std::string_view word) {
    if (text_.substr(pos_, word.size()) != word) return false;
    pos_ += word.size();
    return true;
  }
  // Without `lines`, stays on the line unless a group is open or the next line goes on with '|'.
  void space(bool lines) {
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c == '#' || text_.substr(pos_, 2) == "//") {
        while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
      } else if (c == ' ' || c == '\t' || c == '\r' || (c == '\n' && lines)) {
        ++pos_;
      } else if (c == '\n' && continues()) {
        lines = true;  // all of it up to the '|' is space, and is not looked through again
      } else {
        return;
      }
    }
  }
  bool continues() {
    const size_t here = pos_;
    space(true);
    const bool more = at('|');
    pos_ = here;
    return more;
  }
  std::string_view word() {
    const size_t begin = pos_;
    const auto inner = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    };
    while (pos_ < text_.size() && inner(text_[pos_])) ++pos_;
    return text_.substr(begin, pos_ - begin);
  }
  Entry& entry(std::string_view name) {
    const auto [found, added] = rules_.try_emplace(std::string(name));
    if (added) found->second.id = b_.rule("rule '" + std::string(name) + "'");
    return found->second;
  }

  Status rule() {
    const std::string_view name = word();
    if (name.empty()) return error("a rule name is expected");
    Entry& target = entry(name);
    if (target.defined) return error("the rule is defined twice");
    target.defined = true;
    const RuleId id = target.id;
    space(false);
    if (!take("::=") && !take(":") && !take("=")) return error("'::=' is expected after the rule's name");
    space(true);
    K3_TRY_ASSIGN(const Expr body, alternatives(0));
    b_.define(id, body);
    if (pos_ < text_.size() && !at('\n')) return error("the line does not end where the rule does");
    return {};
  }

  Result<Expr> alternatives(int depth) {
    if (depth > kMaxGroups) return error("groups are nested too deeply");
    std::vector<Expr> parts;
    do {
      space(depth > 0);
      K3_TRY_ASSIGN(const Expr part, sequence(depth));
      parts.push_back(part);
      space(depth > 0);
    } while (take("|"));
    return b_.alt(std::move(parts));
  }

  Result<Expr> sequence(int depth) {
    std::vector<Expr> parts;
    while (pos_ < text_.size() && !at('|') && !at(')') && !at('\n')) {
      K3_TRY_ASSIGN(const Expr part, repeated(depth));
      parts.push_back(part);
      if (b_.size() > kMaxNodes) return error("the grammar is too large", Code::exhausted);
      space(depth > 0);
    }
    return b_.seq(std::move(parts));
  }

  Result<Expr> repeated(int depth) {
    constexpr int kMostRepeats = 8;  // behind one atom; each nests what is built of it one deeper
    K3_TRY_ASSIGN(Expr body, atom(depth));
    for (int repeats = 0;; ++repeats) {
      if (repeats > kMostRepeats) return error("too many repeats of one thing");
      if (take("*")) {
        body = b_.star(body);
      } else if (take("+")) {
        body = b_.seq({body, b_.star(body)});
      } else if (take("?")) {
        body = b_.optional(body);
      } else if (at('{')) {
        ++pos_;
        K3_TRY_ASSIGN(const uint32_t min, number());
        uint32_t max = min;
        if (take(",")) {
          max = kUnbounded;
          if (!at('}')) {
            K3_TRY_ASSIGN(max, number());
          }
        }
        if (!take("}")) return error("'}' is expected");
        if (max < min) return error("the count's end is below its start");
        body = counted(body, min, max);
      } else {
        return body;
      }
    }
  }

  Expr counted(Expr body, uint32_t min, uint32_t max) {
    if (max == 0) return b_.empty();
    const RuleId rule = b_.rule("a repeated group", body);
    if (min > kExpanded || (max != kUnbounded && max > kExpanded))
      return b_.call(b_.loop("a repeated group", rule, min, max));
    const Expr call = b_.call(rule);
    Expr out = max == kUnbounded ? b_.star(call) : b_.empty();
    for (uint32_t i = max == kUnbounded ? min : max; i-- > 0;) {
      out = b_.seq({call, out});
      if (i >= min) out = b_.optional(out);
    }
    return out;
  }

  Result<uint32_t> number() {
    while (at(' ')) ++pos_;
    const size_t begin = pos_;
    uint64_t value = 0;
    for (; pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9'; ++pos_) {
      value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(text_[pos_] - '0'), 1'000'000'000);
    }
    if (pos_ == begin) return error("a count is expected");
    while (at(' ')) ++pos_;
    return static_cast<uint32_t>(value);
  }

  Result<Expr> atom(int depth) {
    if (take("(")) {
      K3_TRY_ASSIGN(const Expr body, alternatives(depth + 1));
      if (!take(")")) return error("')' is expected");
      return body;
    }
    if (at('"') || at('\'')) return quoted(text_[pos_]);
    if (at('[')) return delimited("[", ']');
    if (take("/")) return delimited("", '/');
    if (take(".")) return b_.characters(CodeSet::all(), Encoding::raw);
    const std::string_view name = word();
    if (name.empty()) return error("a literal, class, name or group is expected");
    return b_.call(entry(name).id);
  }

  // A class or /pattern/: read to its end and given to the regex parser.
  Result<Expr> delimited(std::string_view opener, char closer) {
    size_t end = pos_ + opener.size();
    bool in_class = false;
    for (; end < text_.size() && text_[end] != '\n' && (text_[end] != closer || in_class); ++end) {
      if (text_[end] == '\\') {
        ++end;  // an escaped bracket opens and closes nothing
      } else if (closer == '/') {
        in_class = text_[end] == '[' || (in_class && text_[end] != ']');
      }
    }
    if (end >= text_.size() || text_[end] != closer) return error("a class or pattern is not closed on its line");
    std::string pattern(text_.substr(pos_, end - pos_));
    if (closer == ']') pattern += ']';
    auto dfa = parse_regex(pattern, true);
    if (!dfa.ok()) return error(dfa.error().message, dfa.error().code);
    pos_ = end + 1;
    return b_.text(*std::move(dfa), Encoding::raw);
  }

  Result<Expr> quoted(char quote) {
    ++pos_;
    std::string out;
    while (!at(quote)) {
      if (pos_ >= text_.size() || at('\n')) return error("a literal is not closed on its line");
      if (!take("\\")) {
        out.push_back(text_[pos_++]);
        continue;
      }
      if (pos_ >= text_.size()) return error("a literal is not closed on its line");
      const char c = text_[pos_++];
      constexpr std::string_view kNames = "nrtbf\\\"'/[]", kValues = "\n\r\t\b\f\\\"'/[]";
      const size_t which = kNames.find(c);
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
      if (which != std::string_view::npos) {
        out.push_back(kValues[which]);
      } else if (digits > 0) {
        uint32_t code = 0;
        for (size_t i = 0; i < digits; ++i, ++pos_) {
          constexpr std::string_view kHex = "0123456789abcdef";
          const char d = pos_ < text_.size() ? text_[pos_] : ' ';
          const size_t value = kHex.find(d >= 'A' && d <= 'F' ? static_cast<char>(d | 32) : d);
          if (value == std::string_view::npos || code > 0xFFFFFFF) return error("an escape is not finished");
          code = code * 16 + static_cast<uint32_t>(value);
        }
        if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return error("an escape names no character");
        append_utf8(out, code);
      } else {
        return error("an unknown escape in a literal");
      }
    }
    ++pos_;
    return b_.literal(out);
  }

  Builder& b_;
  std::string_view text_;
  size_t pos_ = 0;
  std::map<std::string, Entry, std::less<>> rules_;
};

}  // namespace

Result<RuleId> parse_ebnf(Builder& builder, std::string_view text) { return EbnfParser(builder, text).parse(); }

}  // namespace k3::grammar
