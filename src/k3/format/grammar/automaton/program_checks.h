// Internal to format/grammar. What compile() checks and cleans after the automata are built.
#pragma once

#include "k3/format/grammar/automaton/program.h"

namespace k3::grammar {

// invalid_argument: a rule can come to itself (or a counted body can end) without consuming anything.
Status check_empty_cycles(const Program& program, const Builder& builder);

// Fills State::need, removes edges after which nothing can be completed. invalid_argument: nothing satisfies the grammar.
Status remove_dead_ends(Program& program);

}  // namespace k3::grammar
