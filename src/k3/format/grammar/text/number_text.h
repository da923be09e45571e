// Purpose:  JSON numbers in a range and multiples, as sets of strings.
// Shapes:   bounds are decimal literals of any length.
// Units:    none.
// Memory:   by value.
// Threads:  pure functions.
// Errors:   invalid_argument: not a number; exhausted: more than 400 digits, a multiple above 2,000 units.
// Source:   exact comparison digit by digit. With a bound or a multiple a number has no exponent, and -0 is not among
//           them; both are spellings only.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "k3/format/grammar/text/text_dfa.h"

namespace k3::grammar {

// whole.fraction, without zeros that mean nothing.
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction;

  static Result<Decimal> parse(std::string_view json_number);
  bool zero() const { return whole == "0" && fraction.empty(); }
};
int compare(const Decimal& a, const Decimal& b);

struct Bound {
  Decimal value;
  bool exclusive = false;
};

struct NumberSpec {
  bool integer = false;
  std::optional<Bound> min, max;
  std::optional<Decimal> multiple;
};

Result<TextDfa> number_text(const NumberSpec& spec);

}  // namespace k3::grammar
