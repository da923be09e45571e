// Purpose:  regular expressions of ECMA-262 without what is not regular: no look-around, back references, word
//           boundaries or flags. Laziness is accepted and has no meaning for a set of strings.
// Shapes:   none.
// Units:    code points.
// Memory:   by value.
// Threads:  pure functions.
// Errors:   invalid_argument with the offset: syntax and what is not regular; exhausted: pattern or automaton too large.
// Source:   ECMA-262 patterns with the u flag, as JSON Schema asks; `whole` false: the text contains a match.
#pragma once

#include <string_view>

#include "k3/format/grammar/text/text_dfa.h"

namespace k3::grammar {

Result<TextDfa> parse_regex(std::string_view pattern, bool whole);

}  // namespace k3::grammar
