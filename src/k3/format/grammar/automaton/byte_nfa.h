// Internal to format/grammar. The nondeterministic automaton of one rule, built from its expression, and the writing of
// code points as bytes.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "k3/format/grammar/automaton/builder.h"

namespace k3::grammar {

class ByteNfa {
 public:
  struct ByteEdge {
    uint8_t lo, hi;
    uint32_t to;
  };
  struct Edge {  // of a special token or a call
    uint32_t value, to;
  };
  struct State {
    std::vector<uint32_t> jumps;
    std::vector<ByteEdge> bytes;
    std::vector<Edge> tokens, calls;
    bool free = false;
  };

  explicit ByteNfa(const Builder& builder) : builder_(builder) {}
  uint32_t state();
  // False: more than `limit` states.
  bool build(Expr e, uint32_t from, uint32_t to, size_t limit);
  const std::vector<State>& states() const { return states_; }
  void jump(uint32_t from, uint32_t to) { states_[from].jumps.push_back(to); }

 private:
  bool text(const TextDfa& dfa, Encoding encoding, uint32_t from, uint32_t to, size_t limit);
  bool list(const Node& node, uint32_t from, uint32_t to, size_t limit);
  void encoded(uint32_t lo, uint32_t hi, Encoding encoding, uint32_t from, uint32_t to);
  void utf8(uint32_t lo, uint32_t hi, uint32_t from, uint32_t to);
  void utf8_same_length(uint32_t lo, uint32_t hi, int tail, uint32_t lead, uint32_t from, uint32_t to);
  uint32_t tail(int bytes, uint32_t to);  // a state from which `bytes` continuation bytes lead to `to`
  void bytes(std::string_view text, uint32_t from, uint32_t to);
  void edge(uint32_t from, uint32_t lo, uint32_t hi, uint32_t to);

  const Builder& builder_;
  std::vector<State> states_;
  std::map<std::pair<uint32_t, int>, uint32_t> tails_;
};

}  // namespace k3::grammar
