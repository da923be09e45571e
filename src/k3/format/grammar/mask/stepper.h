// Internal to format/grammar. Runs a program: threads (a state, a count, a stack), advanced byte by byte. Stacks are
// chains of frames in an arena, shared by all threads that have them in common.
#pragma once

#include <cstdint>
#include <vector>

#include "k3/format/grammar/automaton/program.h"

namespace k3::grammar {

struct Frame {
  uint32_t parent;  // index; 0 is the bottom
  uint32_t ret;     // where the thread goes on
  uint32_t count;   // of the loop or set that it returns to
  uint32_t depth;
};

struct Thread {
  uint32_t state;
  uint32_t stack;
  uint32_t count;  // of a counted text, loop or set
  bool operator==(const Thread&) const = default;
};

// Follows an edge to `to`. A counted text's count follows its edges: entering the start completes a character, leaving to
// the end needs min.
inline bool enter(const Program& p, const Thread& in, uint32_t to, Thread& out) {
  out = {to, in.stack, in.count};
  const RuleInfo& rule = p.rules[p.states[to].rule];
  if (rule.kind != Rule::Kind::counted) return true;
  if (p.states[to].accepting) return in.count >= rule.min;
  if (in.state == rule.start && rule.max != kUnbounded && in.count >= rule.max) return false;
  if (to == rule.start) out.count = rule.max == kUnbounded && in.count >= rule.min ? rule.min : in.count + 1;
  return true;
}

class Stepper {
 public:
  // bottom_depth: frames below the bottom of the arena.
  Stepper(const Program& program, uint32_t bottom_depth) : p_(program) { frames_.push_back({0, kNoState, 0, bottom_depth}); }

  std::vector<Frame>& frames() { return frames_; }
  const std::vector<Frame>& frames() const { return frames_; }

  // Adds the threads at which `thread` can consume something; true: it can also end at the bottom.
  bool close(const Thread& thread, std::vector<Thread>& out);

  // One byte for all of `in`; `out` is overwritten. True: a thread can end at the bottom.
  bool step(const std::vector<Thread>& in, uint8_t byte, std::vector<Thread>& out);
  bool step_token(const std::vector<Thread>& in, int32_t id, std::vector<Thread>& out);

  // Where `byte` leads before closing; false: nowhere.
  bool move(const Thread& in, uint8_t byte, Thread& out) const {
    const uint32_t to = p_.step(in.state, byte);
    return to != kNoState && enter(p_, in, to, out);
  }

 private:
  void push(const Thread& from, uint32_t begin, uint32_t ret, uint32_t count);
  void pop(uint32_t stack);
  void expand(const Thread& thread);
  void begin();
  bool finish(std::vector<Thread>& out);  // closes todo_

  const Program& p_;
  std::vector<Frame> frames_;
  size_t fresh_ = 1;          // frames from here on were made by the running close or step
  std::vector<Thread> todo_;  // everything visited by the running close or step
  bool ended_ = false;
};

}  // namespace k3::grammar
