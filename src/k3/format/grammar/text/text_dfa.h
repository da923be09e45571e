// Purpose:  deterministic automata over code points: what a string may be, before it is known how it will be written
//           (inside JSON quotes, raw, in an attribute). Sets of strings are intersected and subtracted here.
// Shapes:   state 0 is the start; an automaton without states matches nothing. Edges of a state are disjoint, ascending.
// Units:    code points, states.
// Memory:   by value.
// Threads:  values.
// Errors:   exhausted when more than kMaxTextStates states, or more work than that is worth, would be needed.
// Source:   subset construction with start and end assertions; every state that is kept reaches an accepting one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/format/grammar/text/code_set.h"

namespace k3::grammar {

inline constexpr size_t kMaxTextStates = 6000;

struct TextDfa {
  struct Edge {
    uint32_t lo, hi, to;
  };
  struct State {
    std::vector<Edge> edges;
    bool accepting = false;
  };
  std::vector<State> states;

  bool empty() const { return states.empty(); }
  bool matches(std::string_view utf8) const;
  // The set and count bounds, when this is C{min,max} for one set C (max: UINT32_MAX when open).
  bool as_counted_set(CodeSet& set, uint32_t& min, uint32_t& max) const;
};

// A nondeterministic one, built by the front ends.
class TextNfa {
 public:
  enum class Assert : uint8_t { none, start, end };
  uint32_t state();
  void edge(uint32_t from, const CodeSet& set, uint32_t to);
  void jump(uint32_t from, uint32_t to, Assert when = Assert::none);
  size_t size() const { return nodes_.size(); }
  Result<TextDfa> determinize(uint32_t start, uint32_t accept) const;

 private:
  struct Node {
    std::vector<std::pair<CodeSet, uint32_t>> edges;
    std::vector<std::pair<uint32_t, Assert>> jumps;
  };
  void close(std::vector<uint32_t>& set, bool at_start, bool at_end) const;
  std::vector<Node> nodes_;
};

TextDfa any_text();
TextDfa text_of(const std::vector<std::string>& literals);
Result<TextDfa> text_of_length(uint64_t min, uint64_t max);  // max UINT64_MAX: open
Result<TextDfa> intersect(const TextDfa& a, const TextDfa& b);
Result<TextDfa> subtract(const TextDfa& a, const TextDfa& b);

}  // namespace k3::grammar
