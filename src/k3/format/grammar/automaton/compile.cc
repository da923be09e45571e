// Expressions to one deterministic automaton a rule.
#include <algorithm>
#include <unordered_map>

#include "k3/format/grammar/automaton/byte_nfa.h"
#include "k3/format/grammar/automaton/program.h"
#include "k3/format/grammar/automaton/program_checks.h"

namespace k3::grammar {
namespace {

constexpr size_t kMaxRuleNfa = 400'000;  // states of one rule's nondeterministic automaton
constexpr size_t kMaxWork = 40'000'000;  // set elements touched: about a second
constexpr size_t kMaxRows = 16'384;      // of 1 KiB
constexpr uint32_t kRowEdges = 6;        // more edges than this are looked up in a row

using StateSet = std::vector<uint32_t>;

struct SetHash {
  size_t operator()(const StateSet& set) const {
    uint64_t h = 1469598103934665603U;
    for (const uint32_t s : set) h = (h ^ s) * 1099511628211U;
    return static_cast<size_t>(h ^ h >> 29);
  }
};

class Compiler {
 public:
  Compiler(const Builder& builder, Program& out) : builder_(builder), out_(out) {}

  Status run() {
    const auto& rules = builder_.rules();
    out_.rules.resize(rules.size());
    for (uint32_t r = 0; r < rules.size(); ++r) {
      RuleInfo& info = out_.rules[r];
      info.kind = rules[r].kind;
      info.min = rules[r].min;
      info.max = rules[r].max;
      info.required = rules[r].required;
      info.start = static_cast<uint32_t>(out_.states.size());
      const bool automaton = info.kind == Rule::Kind::automaton || info.kind == Rule::Kind::counted;
      if (automaton) {
        K3_TRY(determinize(r));
      } else {
        begin_state(r);
      }
      if (out_.states.size() > kMaxStates) return too_large(r);
    }
    for (CallEdge& edge : out_.calls) edge.begin = out_.rules[edge.begin].start;
    for (uint32_t r = 0; r < rules.size(); ++r) {
      for (const RuleId member : rules[r].members) out_.rules[r].members.push_back(out_.rules[member].start);
    }
    begin_state(0);  // the end of the last state's edges
    return {};
  }

 private:
  Error too_large(uint32_t r) const {
    return fail(Code::exhausted, "{}: needs too large an automaton", builder_.rules()[r].name);
  }

  State& begin_state(uint32_t rule) {
    State state;
    state.rule = rule;
    state.bytes = static_cast<uint32_t>(out_.bytes.size());
    state.tokens = static_cast<uint32_t>(out_.tokens.size());
    state.calls = static_cast<uint32_t>(out_.calls.size());
    out_.states.push_back(state);
    return out_.states.back();
  }

  Status determinize(uint32_t r) {
    const Rule& rule = builder_.rules()[r];
    ByteNfa nfa(builder_);
    const uint32_t begin = nfa.state(), end = nfa.state();
    bool fits = false;
    if (rule.kind == Rule::Kind::counted) {
      fits = nfa.build(rule.body, begin, begin, kMaxRuleNfa) && nfa.build(rule.end, begin, end, kMaxRuleNfa);
    } else {
      fits = nfa.build(rule.body, begin, end, kMaxRuleNfa);
    }
    if (!fits) return too_large(r);
    nfa_ = &nfa.states();
    seen_.assign(nfa_->size(), 0);
    mark_ = 0;
    names_.clear();
    order_.clear();
    base_ = static_cast<uint32_t>(out_.states.size());
    counted_ = rule.kind == Rule::Kind::counted;
    begin_ = begin;
    name({begin});
    for (size_t i = 0; i < order_.size(); ++i) {
      if (work_ > kMaxWork || base_ + order_.size() > kMaxStates) return too_large(r);
      const StateSet set = *order_[i];
      State& state = begin_state(r);
      state.accepting = std::binary_search(set.begin(), set.end(), end);
      state.free = std::any_of(set.begin(), set.end(), [&](uint32_t s) { return (*nfa_)[s].free; });
      byte_edges(set);
      for (auto& [id, to] : grouped(set, &ByteNfa::State::tokens)) {
        out_.tokens.push_back({static_cast<int32_t>(id), name(std::move(to))});
      }
      for (auto& [callee, to] : grouped(set, &ByteNfa::State::calls)) out_.calls.push_back({callee, name(std::move(to))});
    }
    return {};
  }

  std::vector<std::pair<uint32_t, StateSet>> grouped(const StateSet& set,
                                                     std::vector<ByteNfa::Edge> ByteNfa::State::*edges) {
    std::vector<std::pair<uint32_t, StateSet>> out;
    std::vector<std::pair<uint32_t, uint32_t>> all;
    for (const uint32_t s : set) {
      for (const ByteNfa::Edge& edge : (*nfa_)[s].*edges) all.emplace_back(edge.value, edge.to);
    }
    std::sort(all.begin(), all.end());
    for (const auto& [value, to] : all) {
      if (out.empty() || out.back().first != value) out.push_back({value, {}});
      out.back().second.push_back(to);
    }
    return out;
  }

  void byte_edges(const StateSet& set) {
    edges_.clear();
    for (const uint32_t s : set) edges_.insert(edges_.end(), (*nfa_)[s].bytes.begin(), (*nfa_)[s].bytes.end());
    if (edges_.empty()) return;
    std::array<bool, 257> cut{};
    for (const auto& edge : edges_) {
      cut[edge.lo] = true;
      cut[edge.hi + 1U] = true;
    }
    const size_t first = out_.bytes.size();
    std::sort(edges_.begin(), edges_.end(), [](const auto& a, const auto& b) { return a.lo < b.lo; });
    std::vector<ByteNfa::ByteEdge> open;
    size_t next = 0;
    for (uint32_t at = 0; at < 256; ++at) {
      if (!cut[at]) continue;
      uint32_t until = at + 1;
      while (!cut[until] && until < 256) ++until;
      std::erase_if(open, [at](const auto& edge) { return edge.hi < at; });
      for (; next < edges_.size() && edges_[next].lo == at; ++next) open.push_back(edges_[next]);
      work_ += open.size() + 1;
      if (open.empty()) continue;
      StateSet targets;
      for (const auto& edge : open) targets.push_back(edge.to);
      const uint32_t to = name(std::move(targets));
      const auto lo = static_cast<uint8_t>(at), hi = static_cast<uint8_t>(until - 1);
      if (out_.bytes.size() > first && out_.bytes.back().to == to && out_.bytes.back().hi + 1U == at) {
        out_.bytes.back().hi = hi;
      } else {
        out_.bytes.push_back({lo, hi, to});
      }
    }
  }

  uint32_t name(StateSet set) {
    ++mark_;
    size_t kept = 0;
    for (const uint32_t s : set) {
      if (seen_[s] == mark_) continue;
      seen_[s] = mark_;
      set[kept++] = s;
    }
    set.resize(kept);
    for (size_t i = 0; i < set.size(); ++i) {
      for (const uint32_t to : (*nfa_)[set[i]].jumps) {
        if (seen_[to] == mark_) continue;
        seen_[to] = mark_;
        set.push_back(to);
      }
    }
    work_ += set.size();
    // Between two characters of a counted text the state is the start, whatever the last one was.
    if (counted_ && seen_[begin_] == mark_ && !order_.empty()) return base_;
    std::sort(set.begin(), set.end());
    const auto [at, added] = names_.emplace(std::move(set), static_cast<uint32_t>(order_.size()));
    if (added) order_.push_back(&at->first);
    return base_ + at->second;
  }

  const Builder& builder_;
  Program& out_;
  const std::vector<ByteNfa::State>* nfa_ = nullptr;
  std::vector<uint32_t> seen_;
  uint32_t mark_ = 0, base_ = 0, begin_ = 0;
  bool counted_ = false;
  size_t work_ = 0;
  std::unordered_map<StateSet, uint32_t, SetHash> names_;
  std::vector<const StateSet*> order_;
  std::vector<ByteNfa::ByteEdge> edges_;
};

// All of lo..hi lead to one state, and from there `more` continuation bytes to `goal`.
bool leads_to(const Program& p, uint32_t from, uint32_t lo, uint32_t hi, int more, uint32_t goal) {
  const uint32_t to = p.step(from, static_cast<uint8_t>(lo));
  if (to == kNoState) return false;
  for (uint32_t b = lo + 1; b <= hi; ++b) {
    if (p.step(from, static_cast<uint8_t>(b)) != to) return false;
  }
  return more == 0 ? to == goal : leads_to(p, to, 0x80, 0xBF, more - 1, goal);
}

// Every plain character leads from s to `goal`.
bool plain_to(const Program& p, uint32_t s, uint32_t goal) {
  const auto lead = [&](uint32_t first, uint32_t lo, uint32_t hi, int more) {
    const uint32_t to = p.step(s, static_cast<uint8_t>(first));
    return to != kNoState && leads_to(p, to, lo, hi, more, goal);
  };
  if (!leads_to(p, s, 0x20, 0x21, 0, goal) || !leads_to(p, s, 0x23, 0x5B, 0, goal) || !leads_to(p, s, 0x5D, 0x7F, 0, goal)) {
    return false;
  }
  for (uint32_t b = 0xC2; b <= 0xDF; ++b) {
    if (!lead(b, 0x80, 0xBF, 0)) return false;
  }
  for (uint32_t b = 0xE0; b <= 0xEF; ++b) {
    if (!lead(b, b == 0xE0 ? 0xA0 : 0x80, b == 0xED ? 0x9F : 0xBF, 1)) return false;
  }
  for (uint32_t b = 0xF0; b <= 0xF4; ++b) {
    if (!lead(b, b == 0xF0 ? 0x90 : 0x80, b == 0xF4 ? 0x8F : 0xBF, 2)) return false;
  }
  return true;
}

bool is_plain_loop(const Program& p, uint32_t s) {
  const uint32_t goal = p.step(s, 'a');
  return goal != kNoState && plain_to(p, s, goal) && (goal == s || (p.states[goal].simple && plain_to(p, goal, goal)));
}

void set_flags(Program& p) {
  for (uint32_t s = 0; s + 1 < p.states.size(); ++s) {
    State& state = p.states[s];
    const State& next = p.states[s + 1];
    const uint32_t edges = next.bytes - state.bytes;
    const Rule::Kind kind = p.rules[state.rule].kind;
    const bool automaton = kind == Rule::Kind::automaton || kind == Rule::Kind::counted;
    const bool calls = next.calls != state.calls, tokens = next.tokens != state.tokens;
    state.consumes = automaton && (edges > 0 || tokens);
    state.simple = automaton && edges > 0 && !calls && !state.accepting;
    state.last = automaton && state.accepting && edges == 0 && !calls && !tokens;
    if (edges > kRowEdges && p.rows.size() < kMaxRows) {
      std::array<uint32_t, 256> row;
      for (uint32_t b = 0; b < 256; ++b) row[b] = p.step(s, static_cast<uint8_t>(b));
      state.row = static_cast<uint32_t>(p.rows.size());
      p.rows.push_back(row);
    }
  }
  for (uint32_t s = 0; s + 1 < p.states.size(); ++s) {
    if (p.states[s].simple) p.states[s].plain_loop = is_plain_loop(p, s);
  }
}

}  // namespace

Result<Program> compile(const Builder& builder, RuleId root, uint32_t depth_limit) {
  Program out;
  out.depth_limit = depth_limit;
  K3_TRY(Compiler(builder, out).run());
  out.start = out.rules[root].start;
  K3_TRY(check_empty_cycles(out, builder));
  K3_TRY(remove_dead_ends(out));
  set_flags(out);
  return out;
}

}  // namespace k3::grammar
