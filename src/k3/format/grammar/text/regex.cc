#include "k3/format/grammar/text/regex.h"

#include <optional>

#include "k3/base/utf8.h"

namespace k3::grammar {
namespace {

constexpr size_t kMaxNfaStates = 30000;
constexpr int kMaxGroups = 100;                       // nesting
constexpr size_t kMaxPatternBytes = size_t{1} << 18;  // a byte costs about 250 before the automaton's own limits can tell
constexpr uint32_t kOpen = UINT32_MAX;

struct Fragment {
  uint32_t begin, end;
};

// Repeats parse their operand again from the source, once a copy: no tree is needed.
class RegexParser {
 public:
  explicit RegexParser(std::string_view text) : text_(text) {}

  Result<TextDfa> parse(bool whole) {
    if (text_.size() > kMaxPatternBytes) {
      return fail(Code::exhausted, "the pattern of {} bytes is longer than {}", text_.size(), kMaxPatternBytes);
    }
    if (!is_utf8(text_)) return error("is not UTF-8");
    const uint32_t start = nfa_.state(), accept = nfa_.state();
    K3_TRY_ASSIGN(const Fragment body, alternatives(0));
    if (pos_ != text_.size()) return error("has an unmatched ')'");
    nfa_.jump(start, body.begin);
    nfa_.jump(body.end, accept, whole ? TextNfa::Assert::end : TextNfa::Assert::none);
    if (!whole) {
      const uint32_t before = nfa_.state();
      nfa_.jump(start, before);
      nfa_.edge(before, CodeSet::all(), before);
      nfa_.jump(before, body.begin);
      nfa_.edge(accept, CodeSet::all(), accept);
    }
    return nfa_.determinize(start, accept);
  }

 private:
  Error error(std::string_view what) const {
    return fail(Code::invalid_argument, "the pattern {} (at byte {})", what, pos_);
  }
  bool at(char c) const { return pos_ < text_.size() && text_[pos_] == c; }
  bool take(std::string_view word) {
    if (text_.substr(pos_, word.size()) != word) return false;
    pos_ += word.size();
    return true;
  }

  Result<Fragment> alternatives(int depth) {
    if (depth > kMaxGroups) return error("is nested too deeply");
    const Fragment out = {nfa_.state(), nfa_.state()};
    do {
      K3_TRY_ASSIGN(const Fragment part, sequence(depth));
      nfa_.jump(out.begin, part.begin);
      nfa_.jump(part.end, out.end);
    } while (take("|"));
    return out;
  }

  Result<Fragment> sequence(int depth) {
    Fragment out = {nfa_.state(), 0};
    out.end = out.begin;
    while (pos_ < text_.size() && !at('|') && !at(')')) {
      K3_TRY_ASSIGN(const Fragment part, repeated(depth));
      nfa_.jump(out.end, part.begin);
      out.end = part.end;
    }
    return out;
  }

  Result<Fragment> repeated(int depth) {
    const size_t source = pos_;
    K3_TRY_ASSIGN(Fragment first, atom(depth));
    uint32_t min = 1, max = 1;
    const size_t operand_end = pos_;
    K3_TRY_ASSIGN(const bool repeats, quantifier(min, max));
    if (!repeats) return first;
    if (assertion_) return error("repeats an assertion");
    const size_t resume = pos_;
    if (at('*') || at('+') || at('?')) return error("repeats a repeat");
    const Fragment out = {nfa_.state(), nfa_.state()};
    uint32_t at_state = out.begin;
    const uint32_t copies = max == kOpen ? std::max<uint32_t>(min, 1) : max;
    if (max == 0) nfa_.jump(out.begin, out.end);
    for (uint32_t i = 0; i < copies; ++i) {
      Fragment part = first;
      if (i > 0) {
        pos_ = source;
        K3_TRY_ASSIGN(part, atom(depth));
        if (pos_ != operand_end) return error("cannot be repeated");
      }
      if (nfa_.size() > kMaxNfaStates) {
        return fail(Code::exhausted, "the pattern repeats too much (at byte {})", source);
      }
      if (i >= min) nfa_.jump(at_state, out.end);
      nfa_.jump(at_state, part.begin);
      at_state = part.end;
      if (max == kOpen && i + 1 == copies) nfa_.jump(part.end, part.begin);
    }
    if (max > 0) nfa_.jump(at_state, out.end);
    pos_ = resume;
    assertion_ = false;
    return out;
  }

  Result<bool> quantifier(uint32_t& min, uint32_t& max) {
    if (take("*")) {
      min = 0, max = kOpen;
    } else if (take("+")) {
      min = 1, max = kOpen;
    } else if (take("?")) {
      min = 0, max = 1;
    } else if (at('{')) {
      ++pos_;
      K3_TRY_ASSIGN(min, number());
      max = min;
      if (take(",")) {
        max = kOpen;
        if (!at('}')) {
          K3_TRY_ASSIGN(max, number());
        }
      }
      if (!take("}")) return error("has a '{' that is no count (write \\{)");
      if (max < min) return error("has a count whose end is below its start");
    } else {
      return false;
    }
    take("?");
    return true;
  }

  Result<uint32_t> number() {
    uint64_t value = 0;
    const size_t begin = pos_;
    for (; pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9'; ++pos_) {
      value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(text_[pos_] - '0'), 1'000'000'000);
    }
    if (pos_ == begin) return error("has a '{' that is no count (write \\{)");
    return static_cast<uint32_t>(value);
  }

  Fragment of(const CodeSet& set) {
    const Fragment out = {nfa_.state(), nfa_.state()};
    nfa_.edge(out.begin, set, out.end);
    return out;
  }

  Fragment of_assert(TextNfa::Assert when) {
    const Fragment out = {nfa_.state(), nfa_.state()};
    nfa_.jump(out.begin, out.end, when);
    assertion_ = true;
    return out;
  }

  Result<Fragment> atom(int depth) {
    assertion_ = false;
    if (take("^")) return of_assert(TextNfa::Assert::start);
    if (take("$")) return of_assert(TextNfa::Assert::end);
    if (take("(")) return group(depth);
    if (take("[")) {
      K3_TRY_ASSIGN(const CodeSet set, char_class());
      return of(set);
    }
    if (take(".")) return of(CodeSet::dot());
    if (at('*') || at('+') || at('?') || at('{')) return error("repeats nothing");
    if (take("\\")) {
      CodeSet set;
      K3_TRY_ASSIGN(const std::optional<uint32_t> code, escape(set, false));
      if (code) set.add(*code, *code);
      return of(set);
    }
    const uint32_t code = next_code_point(text_, &pos_);
    return of({{code, code}});
  }

  Result<Fragment> group(int depth) {
    if (take("?")) {
      if (take("=") || take("!")) return error("uses look-ahead, which is not supported");
      if (take("<=") || take("<!")) return error("uses look-behind, which is not supported");
      if (take("<")) {
        const size_t end = text_.find('>', pos_);
        if (end == std::string_view::npos) return error("has an unfinished group name");
        pos_ = end + 1;
      } else if (!take(":")) {
        return error("uses group flags, which are not supported");
      }
    }
    K3_TRY_ASSIGN(const Fragment body, alternatives(depth + 1));
    if (!take(")")) return error("has an unclosed '('");
    assertion_ = false;
    return body;
  }

  // After a backslash: one code point, or nothing and `set`.
  Result<std::optional<uint32_t>> escape(CodeSet& set, bool in_class) {
    if (pos_ >= text_.size()) return error("ends with a backslash");
    const uint32_t code = next_code_point(text_, &pos_);
    switch (code) {
      case 'd': set = CodeSet::digits(); return std::optional<uint32_t>();
      case 'D': set = CodeSet::digits().complement(); return std::optional<uint32_t>();
      case 'w': set = CodeSet::word(); return std::optional<uint32_t>();
      case 'W': set = CodeSet::word().complement(); return std::optional<uint32_t>();
      case 's': set = CodeSet::space(); return std::optional<uint32_t>();
      case 'S': set = CodeSet::space().complement(); return std::optional<uint32_t>();
      case 'p':
      case 'P': return property(set, code == 'P');
      case 't': return std::optional<uint32_t>('\t');
      case 'n': return std::optional<uint32_t>('\n');
      case 'r': return std::optional<uint32_t>('\r');
      case 'f': return std::optional<uint32_t>('\f');
      case 'v': return std::optional<uint32_t>('\v');
      case '0': return std::optional<uint32_t>(0);
      case 'x': return hex(2);
      case 'u': return unicode_escape();
      case 'c': return control();
      case 'b':
        if (in_class) return std::optional<uint32_t>('\b');
        [[fallthrough]];
      case 'B': return error("uses a word boundary, which is not supported");
      case 'k': return error("uses a back reference, which is not supported");
      default: break;
    }
    if (code >= '1' && code <= '9') return error("uses a back reference, which is not supported");
    if ((code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z')) return error("has an unknown escape");
    return std::optional<uint32_t>(code);
  }

  Result<std::optional<uint32_t>> control() {
    if (pos_ >= text_.size()) return error("has an unfinished \\c");
    const char letter = static_cast<char>(text_[pos_] | 32);
    if (letter < 'a' || letter > 'z') return error("has an unfinished \\c");
    ++pos_;
    return std::optional<uint32_t>(static_cast<uint32_t>(letter - 'a' + 1));
  }

  Result<std::optional<uint32_t>> property(CodeSet& set, bool negated) {
    const size_t end = text_.find('}', pos_);
    if (!at('{') || end == std::string_view::npos) return error("has an unfinished \\p{...}");
    const std::string_view name = text_.substr(pos_ + 1, end - pos_ - 1);
    if (!CodeSet::property(name, set)) return error("uses a Unicode property that is not supported (L, N and Han are)");
    pos_ = end + 1;
    if (negated) set = set.complement();
    return std::optional<uint32_t>();
  }

  Result<std::optional<uint32_t>> hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++pos_) {
      if (pos_ >= text_.size()) return error("has an unfinished hex escape");
      const char c = text_[pos_];
      if (c >= '0' && c <= '9') {
        value = value * 16 + static_cast<uint32_t>(c - '0');
      } else if ((c | 32) >= 'a' && (c | 32) <= 'f') {
        value = value * 16 + static_cast<uint32_t>((c | 32) - 'a' + 10);
      } else {
        return error("has an unfinished hex escape");
      }
    }
    return std::optional<uint32_t>(value);
  }

  Result<std::optional<uint32_t>> unicode_escape() {
    std::optional<uint32_t> code;
    if (take("{")) {
      uint32_t value = 0;
      int digits = 0;
      for (; !at('}'); ++digits) {
        K3_TRY_ASSIGN(const std::optional<uint32_t> digit, hex(1));
        value = value * 16 + *digit;
        if (value > 0x10FFFF) return error("names a code point above U+10FFFF");
      }
      ++pos_;
      if (digits == 0) return error("has an empty \\u{}");
      code = value;
    } else {
      K3_TRY_ASSIGN(code, hex(4));
      if (*code >= 0xD800 && *code < 0xDC00 && take("\\u")) {
        K3_TRY_ASSIGN(const std::optional<uint32_t> low, hex(4));
        if (*low < 0xDC00 || *low > 0xDFFF) return error("has a lone surrogate");
        code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
      }
    }
    if (*code >= 0xD800 && *code <= 0xDFFF) return error("has a lone surrogate");
    return code;
  }

  Result<CodeSet> char_class() {
    const bool negated = take("^");
    CodeSet out;
    while (!at(']')) {
      if (pos_ >= text_.size()) return error("has an unclosed '['");
      CodeSet set;
      K3_TRY_ASSIGN(const std::optional<uint32_t> low, class_atom(set));
      const bool range = at('-') && pos_ + 1 < text_.size() && text_[pos_ + 1] != ']';
      if (!low || !range) {
        if (low) set.add(*low, *low);
        out.add(set);
        continue;
      }
      ++pos_;
      K3_TRY_ASSIGN(const std::optional<uint32_t> high, class_atom(set));
      if (!high) return error("has a range that ends in a class");
      if (*high < *low) return error("has a range out of order");
      out.add(*low, *high);
    }
    ++pos_;
    return negated ? out.complement() : out;
  }

  Result<std::optional<uint32_t>> class_atom(CodeSet& set) {
    if (take("\\")) return escape(set, true);
    return std::optional<uint32_t>(next_code_point(text_, &pos_));
  }

  std::string_view text_;
  size_t pos_ = 0;
  bool assertion_ = false;
  TextNfa nfa_;
};

}  // namespace

Result<TextDfa> parse_regex(std::string_view pattern, bool whole) { return RegexParser(pattern).parse(whole); }

}  // namespace k3::grammar
