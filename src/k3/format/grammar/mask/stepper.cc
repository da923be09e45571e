#include "k3/format/grammar/mask/stepper.h"

#include <algorithm>

namespace k3::grammar {
namespace {

// Beyond this an ambiguous grammar loses readings: what is kept still leads to texts of the grammar.
constexpr size_t kMaxThreads = 1024;

}  // namespace

void Stepper::push(const Thread& from, uint32_t begin, uint32_t ret, uint32_t count) {
  if (begin == kNoState) return;
  const uint32_t depth = frames_[from.stack].depth;
  if (p_.states[ret].last) {  // nothing is left to do after the call
    if (depth + p_.states[begin].need <= p_.depth_limit) todo_.push_back({begin, from.stack, 0});
    return;
  }
  if (depth + 1 + p_.states[begin].need > p_.depth_limit || depth + p_.states[ret].need > p_.depth_limit) return;
  const Frame frame = {from.stack, ret, count, depth + 1};
  for (size_t i = fresh_; i < frames_.size(); ++i) {
    const Frame& other = frames_[i];
    if (other.parent == frame.parent && other.ret == ret && other.count == count) {
      todo_.push_back({begin, static_cast<uint32_t>(i), 0});
      return;
    }
  }
  frames_.push_back(frame);
  todo_.push_back({begin, static_cast<uint32_t>(frames_.size() - 1), 0});
}

void Stepper::pop(uint32_t stack) {
  if (stack == 0) {
    ended_ = true;
    return;
  }
  const Frame& frame = frames_[stack];
  todo_.push_back({frame.ret, frame.parent, frame.count});
}

void Stepper::expand(const Thread& t) {
  const State& state = p_.states[t.state];
  const RuleInfo& rule = p_.rules[state.rule];
  if (rule.kind == Rule::Kind::loop) {
    if (t.count >= rule.min) pop(t.stack);
    if (rule.max == kUnbounded) {
      push(t, rule.members[0], t.state, std::min(t.count + 1, rule.min));
    } else if (t.count < rule.max) {
      push(t, rule.members[0], t.state, t.count + 1);
    }
  } else if (rule.kind == Rule::Kind::set) {
    if ((t.count & rule.required) == rule.required) pop(t.stack);
    for (uint32_t i = 0; i < rule.members.size(); ++i) {
      if ((t.count >> i & 1) == 0) push(t, rule.members[i], t.state, t.count | 1U << i);
    }
  } else {
    for (uint32_t c = state.calls; c < p_.states[t.state + 1].calls; ++c) push(t, p_.calls[c].begin, p_.calls[c].ret, 0);
    if (state.accepting) pop(t.stack);
  }
}

void Stepper::begin() {
  fresh_ = frames_.size();
  todo_.clear();
  ended_ = false;
}

bool Stepper::finish(std::vector<Thread>& out) {
  for (size_t i = 0; i < todo_.size() && out.size() < kMaxThreads; ++i) {
    const Thread t = todo_[i];
    const auto here = todo_.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(todo_.begin(), here, t) != here) continue;
    if (p_.states[t.state].consumes) out.push_back(t);
    expand(t);
  }
  return ended_;
}

bool Stepper::close(const Thread& thread, std::vector<Thread>& out) {
  begin();
  todo_.push_back(thread);
  return finish(out);
}

bool Stepper::step(const std::vector<Thread>& in, uint8_t byte, std::vector<Thread>& out) {
  out.clear();
  begin();
  for (const Thread& t : in) {
    Thread next;
    if (move(t, byte, next)) todo_.push_back(next);
  }
  return finish(out);
}

bool Stepper::step_token(const std::vector<Thread>& in, int32_t id, std::vector<Thread>& out) {
  out.clear();
  begin();
  for (const Thread& t : in) {
    const State& state = p_.states[t.state];
    if (state.free) out.push_back(t);
    for (uint32_t e = state.tokens; e < p_.states[t.state + 1].tokens; ++e) {
      Thread next;
      if (p_.tokens[e].id != id) continue;
      if (state.free) std::erase(out, t);
      if (enter(p_, t, p_.tokens[e].to, next)) todo_.push_back(next);
    }
  }
  return finish(out);
}

}  // namespace k3::grammar
