// Purpose:  the compiled grammar: one deterministic automaton a rule over bytes, special tokens and calls of rules.
// Shapes:   states of all rules in one array; edges of a state are a run of the shared edge arrays.
// Units:    depth in stack frames.
// Memory:   immutable after compile.
// Threads:  any number of readers.
// Errors:   compile: exhausted naming the rule (more than kMaxStates states, or the work of a second), invalid_argument
//           when a rule can come to itself without consuming anything, or nothing satisfies the grammar.
// Source:   subset construction with calls and special tokens as letters; states from which no text can be completed
//           are removed, and `need` bounds the depth that completion takes: a run below the depth limit never gets stuck.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "k3/base/result.h"
#include "k3/format/grammar/automaton/builder.h"

namespace k3::grammar {

inline constexpr size_t kMaxStates = 400'000;
inline constexpr uint32_t kDepthLimit = 128;  // nesting of values; what reads JSON here reads as much
inline constexpr uint32_t kNoState = UINT32_MAX;

struct ByteEdge {
  uint8_t lo, hi;
  uint32_t to;
};
struct TokenEdge {
  int32_t id;
  uint32_t to;
};
struct CallEdge {
  uint32_t begin;  // start state of the rule
  uint32_t ret;
};

struct State {
  uint32_t bytes = 0, tokens = 0, calls = 0;  // first edges; the next state's are the ends
  uint32_t rule = 0;
  uint32_t row = kNoState;  // 256 targets in Program::rows, for states of many edges
  uint16_t need = 0;
  bool accepting = false;
  bool free = false;        // every token may come, special ones too
  bool consumes = false;    // has byte or token edges
  bool simple = false;      // an automaton's or counted text's state with byte edges only, not accepting
  bool last = false;        // accepting and without edges
  bool plain_loop = false;  // characters that need no escape in JSON lead to one state and stay there
};

struct RuleInfo {
  Rule::Kind kind = Rule::Kind::automaton;
  uint32_t start = kNoState;
  uint32_t min = 0, max = 0, required = 0;
  std::vector<uint32_t> members;  // start states; kNoState: never
};

struct Program {
  std::vector<State> states;  // one more than there are, for the ends of the edge runs
  std::vector<ByteEdge> bytes;
  std::vector<TokenEdge> tokens;
  std::vector<CallEdge> calls;
  std::vector<std::array<uint32_t, 256>> rows;
  std::vector<RuleInfo> rules;
  uint32_t start = 0;
  uint32_t depth_limit = kDepthLimit;

  uint32_t step(uint32_t state, uint8_t byte) const {
    const State& s = states[state];
    if (s.row != kNoState) return rows[s.row][byte];
    for (uint32_t i = s.bytes; i < states[state + 1].bytes; ++i) {
      if (byte < bytes[i].lo) return kNoState;
      if (byte <= bytes[i].hi) return bytes[i].to;
    }
    return kNoState;
  }
};

Result<Program> compile(const Builder& builder, RuleId root, uint32_t depth_limit = kDepthLimit);

}  // namespace k3::grammar
