#include "k3/format/grammar/text/number_text.h"

#include <algorithm>

#include "k3/format/grammar/text/regex.h"

namespace k3::grammar {
namespace {

constexpr int kMaxDigits = 400;
constexpr uint32_t kMaxMultiple = 2000;

int compare_magnitude(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int whole = a.whole.compare(b.whole); whole != 0) return whole;
  return a.fraction.compare(b.fraction);
}

// Strings of digits with an optional fraction that lie on one side of a magnitude.
class SideBuilder {
 public:
  SideBuilder(const Bound& bound, bool above, bool integer) : bound_(bound), above_(above), integer_(integer) {}

  Result<TextDfa> build() {
    start_ = nfa_.state();
    accept_ = nfa_.state();
    free_end_ = nfa_.state();  // the whole part is decided and complete
    free_fraction(free_end_);
    if (above_) {
      longer();
    } else {
      shorter();
    }
    same_length();
    return nfa_.determinize(start_, accept_);
  }

 private:
  void digits(uint32_t from, char lo, char hi, uint32_t to) {
    if (lo <= hi) nfa_.edge(from, {{static_cast<uint32_t>(lo), static_cast<uint32_t>(hi)}}, to);
  }

  void free_fraction(uint32_t from) {
    nfa_.jump(from, accept_);
    if (integer_) return;
    const uint32_t point = nfa_.state(), more = nfa_.state();
    nfa_.edge(from, {{'.', '.'}}, point);
    digits(point, '0', '9', more);
    digits(more, '0', '9', more);
    nfa_.jump(more, accept_);
  }

  // n digits of any kind, then the free end.
  uint32_t any_digits(size_t n) {
    while (any_.size() <= n) {
      if (any_.empty()) {
        any_.push_back(free_end_);
        continue;
      }
      any_.push_back(nfa_.state());
      digits(any_.back(), '0', '9', any_[any_.size() - 2]);
    }
    return any_[n];
  }

  void longer() {
    const uint32_t tail = nfa_.state();
    digits(tail, '0', '9', tail);
    nfa_.jump(tail, free_end_);
    uint32_t at = nfa_.state();
    digits(start_, '1', '9', at);
    for (size_t i = 0; i < bound_.value.whole.size(); ++i) {
      const uint32_t next = i + 1 == bound_.value.whole.size() ? tail : nfa_.state();
      digits(at, '0', '9', next);
      at = next;
    }
  }

  void shorter() {
    for (size_t n = 1; n < bound_.value.whole.size(); ++n) digits(start_, n == 1 ? '0' : '1', '9', any_digits(n - 1));
  }

  void same_length() {
    const std::string& whole = bound_.value.whole;
    uint32_t at = start_;
    for (size_t i = 0; i < whole.size(); ++i) {
      const uint32_t tight = nfa_.state(), loose = any_digits(whole.size() - i - 1);
      const char lowest = i == 0 && whole.size() > 1 ? '1' : '0', c = whole[i];
      digits(at, c, c, tight);
      if (above_) {
        digits(at, static_cast<char>(c + 1), '9', loose);
      } else {
        digits(at, lowest, static_cast<char>(c - 1), loose);
      }
      at = tight;
    }
    const std::string& fraction = bound_.value.fraction;
    if (fraction.empty() ? !bound_.exclusive : !above_) nfa_.jump(at, accept_);
    if (integer_) return;
    const uint32_t decided = nfa_.state();
    digits(decided, '0', '9', decided);
    nfa_.jump(decided, accept_);
    const uint32_t point = nfa_.state();
    nfa_.edge(at, {{'.', '.'}}, point);
    at = point;
    for (size_t i = 0; i < fraction.size(); ++i) {
      const char c = fraction[i];
      const uint32_t tight = nfa_.state();
      digits(at, c, c, tight);
      if (above_) {
        digits(at, static_cast<char>(c + 1), '9', decided);
      } else {
        digits(at, '0', static_cast<char>(c - 1), decided);
        if (i + 1 < fraction.size()) nfa_.jump(tight, accept_);  // cut short: below
      }
      at = tight;
    }
    const uint32_t zeros = nfa_.state();  // equal so far, only zeros since
    if (!fraction.empty() && !bound_.exclusive) nfa_.jump(at, accept_);
    digits(at, '0', '0', zeros);
    digits(zeros, '0', '0', zeros);
    if (!bound_.exclusive) nfa_.jump(zeros, accept_);
    if (above_) {
      digits(at, '1', '9', decided);
      digits(zeros, '1', '9', decided);
    }
  }

  const Bound& bound_;
  const bool above_, integer_;
  TextNfa nfa_;
  uint32_t start_ = 0, accept_ = 0, free_end_ = 0;
  std::vector<uint32_t> any_;
};

Result<TextDfa> magnitude(const Bound& low, const std::optional<Bound>& high, bool integer) {
  K3_TRY_ASSIGN(TextDfa out, SideBuilder(low, true, integer).build());
  if (!high) return out;
  K3_TRY_ASSIGN(const TextDfa below, SideBuilder(*high, false, integer).build());
  return intersect(out, below);
}

Bound negated(Bound bound) {
  bound.value.negative = !bound.value.negative && !bound.value.zero();
  return bound;
}

// '-' and `negative`, or `positive`; no positive one begins with '-'.
TextDfa signed_union(const TextDfa& negative, const TextDfa& positive) {
  TextDfa out;
  out.states.resize(1);
  const auto append = [&](const TextDfa& part) {
    const auto base = static_cast<uint32_t>(out.states.size());
    for (TextDfa::State state : part.states) {
      for (auto& edge : state.edges) edge.to += base;
      out.states.push_back(std::move(state));
    }
    return base;
  };
  if (!negative.empty()) {
    const uint32_t base = append(negative);
    out.states[0].edges.push_back({'-', '-', base});
  }
  if (!positive.empty()) {
    const uint32_t base = append(positive);
    for (const auto& edge : std::vector(out.states[base].edges)) out.states[0].edges.push_back(edge);
  }
  if (out.states[0].edges.empty()) out.states.clear();
  return out;
}

Result<TextDfa> in_range(const NumberSpec& spec) {
  const Bound zero;
  TextDfa negative, positive;
  const bool above_zero = spec.min && !spec.min->value.negative;
  const bool below_zero = spec.max && spec.max->value.negative;
  if (!below_zero) {
    K3_TRY_ASSIGN(positive, magnitude(above_zero ? *spec.min : zero, spec.max, spec.integer));
  }
  if (!above_zero) {
    const Bound low = below_zero ? negated(*spec.max) : Bound{{}, true};
    std::optional<Bound> high;
    if (spec.min) high = negated(*spec.min);
    K3_TRY_ASSIGN(negative, magnitude(low, high, spec.integer));
  }
  return signed_union(negative, positive);
}

// Value times 10^k, kept modulo `unit`; the multiple is unit / 10^k.
Result<TextDfa> multiples(const Decimal& multiple) {
  const size_t k = multiple.fraction.size();
  const std::string digits = multiple.whole + multiple.fraction;
  uint64_t unit = 0;
  for (const char c : digits) {
    unit = unit * 10 + static_cast<uint64_t>(c - '0');
    if (unit > kMaxMultiple) break;
  }
  if (unit == 0) return fail(Code::invalid_argument, "must be above 0");
  if (unit > kMaxMultiple || (k + 1) * unit + 2 > kMaxTextStates) {
    return fail(Code::exhausted, "needs more than {} residues", kMaxMultiple);
  }
  TextDfa out;
  // 0: start, 1: after the sign, then unit states a digit after the point (block 0: the whole part), then one for '.'.
  const auto block = [&](size_t place, uint64_t residue) { return static_cast<uint32_t>(2 + place * unit + residue); };
  out.states.resize(2 + (k + 1) * unit + (k > 0 ? unit : 0));
  const auto digits_of = [&](uint32_t from, uint64_t residue, size_t place) {
    for (uint32_t d = 0; d < 10; ++d) {
      out.states[from].edges.push_back({'0' + d, '0' + d, block(place, (residue * 10 + d) % unit)});
    }
  };
  out.states[0].edges.push_back({'-', '-', 1});
  digits_of(0, 0, 0);
  digits_of(1, 0, 0);
  for (size_t place = 0; place <= k; ++place) {
    uint64_t scale = 1;
    for (size_t i = place; i < k; ++i) scale = scale * 10 % unit;
    for (uint64_t residue = 0; residue < unit; ++residue) {
      const uint32_t s = block(place, residue);
      out.states[s].accepting = residue * scale % unit == 0;
      if (place == 0 && k > 0) {
        const uint32_t point = block(k + 1, residue);
        out.states[s].edges.push_back({'.', '.', point});
        digits_of(point, residue, 1);
      }
      if (place == 0 || place < k) digits_of(s, residue, place == 0 ? 0 : place + 1);
    }
  }
  return out;
}

}  // namespace

Result<Decimal> Decimal::parse(std::string_view text) {
  Decimal out;
  size_t pos = 0;
  if (!text.empty() && text[0] == '-') {
    out.negative = true;
    ++pos;
  }
  std::string digits;
  int64_t point = -1, exponent = 0;
  for (; pos < text.size() && (text[pos] == '.' || (text[pos] >= '0' && text[pos] <= '9')); ++pos) {
    if (text[pos] == '.') {
      point = static_cast<int64_t>(digits.size());
    } else {
      digits.push_back(text[pos]);
    }
  }
  if (digits.empty()) return fail(Code::invalid_argument, "must be a number");
  if (point < 0) point = static_cast<int64_t>(digits.size());
  if (pos < text.size()) {
    const bool minus = text[++pos] == '-';
    if (minus || text[pos] == '+') ++pos;
    for (; pos < text.size(); ++pos) exponent = std::min<int64_t>(exponent * 10 + (text[pos] - '0'), 100000);
    if (minus) exponent = -exponent;
  }
  point += exponent;
  const auto size = static_cast<int64_t>(digits.size());
  if (point > kMaxDigits || point < -kMaxDigits || size > kMaxDigits) {
    return fail(Code::exhausted, "has more than {} digits", kMaxDigits);
  }
  if (point < 0) digits.insert(0, static_cast<size_t>(-point), '0');
  if (point > size) digits.append(static_cast<size_t>(point - size), '0');
  const auto cut = static_cast<size_t>(std::max<int64_t>(point, 0));
  out.whole = digits.substr(0, cut);
  out.fraction = digits.substr(cut);
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  while (!out.fraction.empty() && out.fraction.back() == '0') out.fraction.pop_back();
  if (out.zero()) out.negative = false;
  return out;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? compare_magnitude(b, a) : compare_magnitude(a, b);
}

Result<TextDfa> number_text(const NumberSpec& spec) {
  if (!spec.min && !spec.max && !spec.multiple) {
    return parse_regex(spec.integer ? "-?(0|[1-9][0-9]*)" : "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?", true);
  }
  K3_TRY_ASSIGN(TextDfa out, in_range(spec));
  if (!spec.multiple) return out;
  K3_TRY_ASSIGN(const TextDfa of, multiples(*spec.multiple));
  return intersect(out, of);
}

}  // namespace k3::grammar
