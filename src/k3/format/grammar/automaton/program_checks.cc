#include "k3/format/grammar/automaton/program_checks.h"

#include <algorithm>
#include <utility>

namespace k3::grammar {
namespace {

constexpr uint32_t kNever = UINT32_MAX;
constexpr size_t kMaxVisits = 200'000'000;  // of states, in passes that repeat until nothing changes

bool is_automaton(const Program& p, const State& s) {
  const Rule::Kind kind = p.rules[s.rule].kind;
  return kind == Rule::Kind::automaton || kind == Rule::Kind::counted;
}

Error too_deep() { return fail(Code::exhausted, "the rules depend on each other too deeply"); }

// Which states can complete their rule without consuming anything.
Result<std::vector<char>> nullable_states(const Program& p) {
  const size_t n = p.states.size() - 1;
  std::vector<char> out(n, 0);
  size_t visits = 0;
  for (bool changed = true; changed;) {
    changed = false;
    if ((visits += n) > kMaxVisits) return too_deep();
    for (size_t s = n; s-- > 0;) {
      if (out[s] != 0) continue;
      const State& state = p.states[s];
      const RuleInfo& rule = p.rules[state.rule];
      bool now = false;
      if (rule.kind == Rule::Kind::loop) {
        now = rule.min == 0 || out[rule.members[0]] != 0;
      } else if (rule.kind == Rule::Kind::set) {
        now = rule.required == 0;
      } else {
        now = state.accepting && (rule.kind == Rule::Kind::automaton || rule.min == 0);
        for (uint32_t c = state.calls; c < p.states[s + 1].calls && !now; ++c) {
          now = out[p.calls[c].begin] != 0 && out[p.calls[c].ret] != 0;
        }
      }
      if (now) {
        out[s] = 1;
        changed = true;
      }
    }
  }
  return out;
}

}  // namespace

Status check_empty_cycles(const Program& p, const Builder& builder) {
  K3_TRY_ASSIGN(const std::vector<char> nullable, nullable_states(p));
  const size_t n = p.states.size() - 1;
  const auto name = [&](uint32_t s) { return builder.rules()[p.states[s].rule].name; };
  const auto successors = [&](uint32_t s, std::vector<uint32_t>& out) {
    out.clear();
    if (!is_automaton(p, p.states[s])) {
      out = p.rules[p.states[s].rule].members;
      return;
    }
    for (uint32_t c = p.states[s].calls; c < p.states[s + 1].calls; ++c) {
      out.push_back(p.calls[c].begin);
      if (nullable[p.calls[c].begin] != 0) out.push_back(p.calls[c].ret);
    }
  };
  std::vector<char> color(n, 0);  // 1: on the path, 2: done
  std::vector<std::pair<uint32_t, std::vector<uint32_t>>> path;
  std::vector<uint32_t> next;
  for (uint32_t root = 0; root < n; ++root) {
    const RuleInfo& rule = p.rules[p.states[root].rule];
    if (!is_automaton(p, p.states[root])) {
      for (const uint32_t member : rule.members) {
        if (nullable[member] != 0) return fail(Code::invalid_argument, "{}: what is repeated may be empty", name(root));
      }
    }
    if (color[root] != 0) continue;
    color[root] = 1;
    successors(root, next);
    path.emplace_back(root, next);
    while (!path.empty()) {
      auto& [at, rest] = path.back();
      if (rest.empty()) {
        color[at] = 2;
        path.pop_back();
        continue;
      }
      const uint32_t to = rest.back();
      rest.pop_back();
      if (color[to] == 2) continue;
      if (color[to] == 1) return fail(Code::invalid_argument, "{}: begins with itself (left recursion)", name(to));
      color[to] = 1;
      successors(to, next);
      path.emplace_back(to, next);
    }
  }
  return {};
}

namespace {

uint32_t need_of(const Program& p, const std::vector<uint32_t>& need, size_t s) {
  const State& state = p.states[s];
  const RuleInfo& rule = p.rules[state.rule];
  const auto deeper = [](uint32_t value) { return value == kNever ? kNever : value + 1; };
  if (rule.kind == Rule::Kind::loop) return rule.min == 0 ? 0 : deeper(need[rule.members[0]]);
  if (rule.kind == Rule::Kind::set) {
    uint32_t most = 0;
    for (size_t i = 0; i < rule.members.size(); ++i) {
      if ((rule.required >> i & 1) != 0) most = std::max(most, deeper(need[rule.members[i]]));
    }
    return most;
  }
  if (state.accepting) return 0;
  uint32_t least = kNever;
  for (uint32_t e = state.bytes; e < p.states[s + 1].bytes; ++e) least = std::min(least, need[p.bytes[e].to]);
  for (uint32_t e = state.tokens; e < p.states[s + 1].tokens; ++e) least = std::min(least, need[p.tokens[e].to]);
  for (uint32_t c = state.calls; c < p.states[s + 1].calls; ++c) {
    least = std::min(least, std::max(deeper(need[p.calls[c].begin]), need[p.calls[c].ret]));
  }
  return least;
}

}  // namespace

Status remove_dead_ends(Program& p) {
  const size_t n = p.states.size() - 1;
  std::vector<uint32_t> need(n, kNever);
  size_t visits = 0;
  for (bool changed = true; changed;) {
    changed = false;
    if ((visits += n) > kMaxVisits) return too_deep();
    for (size_t s = n; s-- > 0;) {
      const uint32_t now = need_of(p, need, s);
      if (now < need[s]) {
        need[s] = now;
        changed = true;
      }
    }
  }
  if (need[p.start] == kNever) return fail(Code::invalid_argument, "nothing satisfies it");
  if (need[p.start] >= p.depth_limit) return fail(Code::exhausted, "what satisfies it is nested too deeply");
  std::vector<ByteEdge> bytes;
  std::vector<TokenEdge> tokens;
  std::vector<CallEdge> calls;
  for (size_t s = 0; s < n; ++s) {
    const State old = p.states[s];
    const State& next = p.states[s + 1];
    State& state = p.states[s];
    state.need = static_cast<uint16_t>(std::min<uint32_t>(need[s], UINT16_MAX));
    state.bytes = static_cast<uint32_t>(bytes.size());
    state.tokens = static_cast<uint32_t>(tokens.size());
    state.calls = static_cast<uint32_t>(calls.size());
    for (uint32_t e = old.bytes; e < next.bytes; ++e) {
      if (need[p.bytes[e].to] != kNever) bytes.push_back(p.bytes[e]);
    }
    for (uint32_t e = old.tokens; e < next.tokens; ++e) {
      if (need[p.tokens[e].to] != kNever) tokens.push_back(p.tokens[e]);
    }
    for (uint32_t e = old.calls; e < next.calls; ++e) {
      if (need[p.calls[e].begin] != kNever && need[p.calls[e].ret] != kNever) calls.push_back(p.calls[e]);
    }
  }
  p.states[n].bytes = static_cast<uint32_t>(bytes.size());
  p.states[n].tokens = static_cast<uint32_t>(tokens.size());
  p.states[n].calls = static_cast<uint32_t>(calls.size());
  for (RuleInfo& rule : p.rules) {
    for (uint32_t& member : rule.members) {
      if (need[member] == kNever) member = kNoState;
    }
  }
  p.bytes = std::move(bytes);
  p.tokens = std::move(tokens);
  p.calls = std::move(calls);
  return {};
}

}  // namespace k3::grammar
