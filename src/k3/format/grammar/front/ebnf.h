// Purpose:  grammars written as text: name ::= alternatives of literals, classes, names and groups with * + ? {m,n}.
// Shapes:   the start rule is `root`.
// Units:    code points.
// Memory:   writes into the builder.
// Threads:  pure function of its arguments.
// Errors:   invalid_argument with the line: syntax, unknown or repeated names; exhausted: too long, or repeated
//           too much.
// Source:   the notation that llama.cpp and others take (GBNF); `:` and `=` may stand for `::=`, /regex/ for a terminal.
#pragma once

#include <string_view>

#include "k3/format/grammar/automaton/builder.h"

namespace k3::grammar {

Result<RuleId> parse_ebnf(Builder& builder, std::string_view text);

}  // namespace k3::grammar
