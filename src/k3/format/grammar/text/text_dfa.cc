#include "k3/format/grammar/text/text_dfa.h"

#include <algorithm>
#include <map>

#include "k3/base/utf8.h"

namespace k3::grammar {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Keeps the states that reach an accepting one and are reached from the start.
TextDfa trimmed(const TextDfa& in) {
  const size_t n = in.states.size();
  std::vector<std::vector<uint32_t>> back(n);
  std::vector<char> alive(n, 0);
  std::vector<uint32_t> todo;
  for (uint32_t s = 0; s < n; ++s) {
    for (const auto& edge : in.states[s].edges) back[edge.to].push_back(s);
    if (in.states[s].accepting) {
      alive[s] = 1;
      todo.push_back(s);
    }
  }
  while (!todo.empty()) {
    const uint32_t s = todo.back();
    todo.pop_back();
    for (const uint32_t from : back[s]) {
      if (alive[from] != 0) continue;
      alive[from] = 1;
      todo.push_back(from);
    }
  }
  TextDfa out;
  if (n == 0 || alive[0] == 0) return out;
  std::vector<uint32_t> name(n, kNone), order = {0};
  name[0] = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    for (const auto& edge : in.states[order[i]].edges) {
      if (alive[edge.to] == 0 || name[edge.to] != kNone) continue;
      name[edge.to] = static_cast<uint32_t>(order.size());
      order.push_back(edge.to);
    }
  }
  for (const uint32_t s : order) {
    TextDfa::State state;
    state.accepting = in.states[s].accepting;
    for (const auto& edge : in.states[s].edges) {
      if (alive[edge.to] == 0) continue;
      auto& edges = state.edges;
      if (!edges.empty() && edges.back().to == name[edge.to] && edges.back().hi + 1 == edge.lo) {
        edges.back().hi = edge.hi;
      } else {
        edges.push_back({edge.lo, edge.hi, name[edge.to]});
      }
    }
    out.states.push_back(std::move(state));
  }
  return out;
}

Error too_large() { return fail(Code::exhausted, "needs an automaton of more than {} states", kMaxTextStates); }

// Product of a and b; b is completed by a sink (kNone) when it is subtracted.
Result<TextDfa> product(const TextDfa& a, const TextDfa& b, bool subtracting) {
  TextDfa out;
  if (a.empty() || (b.empty() && !subtracting)) return out;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> names;
  std::vector<std::pair<uint32_t, uint32_t>> order;
  const auto name = [&](uint32_t x, uint32_t y) {
    const auto [at, added] = names.emplace(std::pair(x, y), static_cast<uint32_t>(order.size()));
    if (added) order.emplace_back(x, y);
    return at->second;
  };
  name(0, b.empty() ? kNone : 0);
  for (size_t i = 0; i < order.size(); ++i) {
    if (order.size() > kMaxTextStates) return too_large();
    const auto [x, y] = order[i];
    TextDfa::State state;
    const bool other = y != kNone && b.states[y].accepting;
    state.accepting = a.states[x].accepting && other != subtracting;
    size_t first = 0;  // of b's edges; those of either are ascending and apart
    for (const auto& edge : a.states[x].edges) {
      uint32_t lo = edge.lo;
      if (y != kNone) {
        const auto& matches = b.states[y].edges;
        while (first < matches.size() && matches[first].hi < lo) ++first;
        for (size_t m = first; m < matches.size() && matches[m].lo <= edge.hi; ++m) {
          const auto& match = matches[m];
          if (subtracting && match.lo > lo) state.edges.push_back({lo, match.lo - 1, name(edge.to, kNone)});
          const uint32_t from = std::max(lo, match.lo), to = std::min(edge.hi, match.hi);
          state.edges.push_back({from, to, name(edge.to, match.to)});
          lo = to + 1;
        }
      }
      if (subtracting && lo <= edge.hi) state.edges.push_back({lo, edge.hi, name(edge.to, kNone)});
    }
    out.states.push_back(std::move(state));
  }
  return trimmed(out);
}

}  // namespace

bool TextDfa::matches(std::string_view utf8) const {
  if (empty()) return false;
  uint32_t at = 0;
  for (size_t pos = 0; pos < utf8.size();) {
    const uint32_t code = next_code_point(utf8, &pos);
    const auto& edges = states[at].edges;
    const auto hit =
        std::find_if(edges.begin(), edges.end(), [code](const Edge& e) { return code >= e.lo && code <= e.hi; });
    if (hit == edges.end()) return false;
    at = hit->to;
  }
  return states[at].accepting;
}

bool TextDfa::as_counted_set(CodeSet& set, uint32_t& min, uint32_t& max) const {
  if (empty() || states[0].edges.empty()) return false;
  const auto set_of = [&](uint32_t s, uint32_t& to) {
    CodeSet out;
    to = states[s].edges.empty() ? kNone : states[s].edges[0].to;
    for (const Edge& edge : states[s].edges) {
      if (edge.to != to) return CodeSet();
      out.add(edge.lo, edge.hi);
    }
    return out;
  };
  uint32_t to = 0, at = 0;
  set = set_of(0, to);
  if (set.empty()) return false;
  std::vector<char> seen(states.size(), 0);
  uint32_t count = 0;
  min = kNone;
  while (true) {
    seen[at] = 1;
    if (states[at].accepting && min == kNone) min = count;
    if (!states[at].accepting && min != kNone) return false;
    if (states[at].edges.empty()) {
      max = count;
      return min != kNone;
    }
    if (set_of(at, to) != set) return false;
    if (seen[to] != 0) {
      max = kNone;
      return to == at && min != kNone;
    }
    at = to;
    ++count;
  }
}

uint32_t TextNfa::state() {
  nodes_.emplace_back();
  return static_cast<uint32_t>(nodes_.size() - 1);
}
void TextNfa::edge(uint32_t from, const CodeSet& set, uint32_t to) { nodes_[from].edges.emplace_back(set, to); }
void TextNfa::jump(uint32_t from, uint32_t to, Assert when) { nodes_[from].jumps.emplace_back(to, when); }

void TextNfa::close(std::vector<uint32_t>& set, bool at_start, bool at_end) const {
  std::vector<char> in(nodes_.size(), 0);
  for (const uint32_t s : set) in[s] = 1;
  for (size_t i = 0; i < set.size(); ++i) {
    for (const auto& [to, when] : nodes_[set[i]].jumps) {
      if (in[to] != 0 || (when == Assert::start && !at_start) || (when == Assert::end && !at_end)) continue;
      in[to] = 1;
      set.push_back(to);
    }
  }
  std::sort(set.begin(), set.end());
}

Result<TextDfa> TextNfa::determinize(uint32_t start, uint32_t accept) const {
  constexpr size_t kMaxWork = 30'000'000;  // nodes visited in closures, ranges compared: about a second
  TextDfa out;
  std::map<std::vector<uint32_t>, uint32_t> names;
  std::vector<std::vector<uint32_t>> order;
  size_t work = 0;
  // The start has a name of its own: assertions hold there only.
  const auto name = [&](std::vector<uint32_t> set, bool at_start) {
    close(set, at_start, false);
    work += nodes_.size() / 8 + set.size();
    if (at_start) set.push_back(kNone);
    const auto [at, added] = names.emplace(set, static_cast<uint32_t>(order.size()));
    if (added) order.push_back(std::move(set));
    return at->second;
  };
  name({start}, true);
  for (size_t i = 0; i < order.size(); ++i) {
    if (order.size() > kMaxTextStates || work > kMaxWork) return too_large();
    std::vector<uint32_t> set = order[i];
    const bool first = set.back() == kNone;
    if (first) set.pop_back();
    TextDfa::State state;
    std::vector<uint32_t> ends = set;
    close(ends, first, true);
    state.accepting = std::binary_search(ends.begin(), ends.end(), accept);
    struct Cut {
      uint32_t lo, hi, to;
    };
    std::vector<Cut> cuts;
    std::vector<uint32_t> points;
    for (const uint32_t s : set) {
      for (const auto& [codes, to] : nodes_[s].edges) {
        for (const CodeRange& range : codes.ranges()) {
          cuts.push_back({range.lo, range.hi, to});
          points.push_back(range.lo);
          points.push_back(range.hi + 1);
        }
      }
    }
    std::sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) { return a.lo < b.lo; });
    std::sort(points.begin(), points.end());
    points.erase(std::unique(points.begin(), points.end()), points.end());
    std::vector<Cut> open;
    size_t next = 0;
    for (size_t p = 0; p + 1 < points.size(); ++p) {
      const uint32_t at = points[p];
      std::erase_if(open, [at](const Cut& cut) { return cut.hi < at; });
      for (; next < cuts.size() && cuts[next].lo == at; ++next) open.push_back(cuts[next]);
      work += open.size() + 1;
      if (open.empty()) continue;
      std::vector<uint32_t> targets;
      for (const Cut& cut : open) targets.push_back(cut.to);
      std::sort(targets.begin(), targets.end());
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      state.edges.push_back({at, points[p + 1] - 1, name(std::move(targets), false)});
      if (work > kMaxWork) return too_large();
    }
    out.states.push_back(std::move(state));
  }
  return trimmed(out);
}

TextDfa any_text() {
  TextDfa out;
  out.states.resize(1);
  out.states[0].accepting = true;
  const CodeSet all = CodeSet::all();
  for (const CodeRange& range : all.ranges()) out.states[0].edges.push_back({range.lo, range.hi, 0});
  return out;
}

TextDfa text_of(const std::vector<std::string>& literals) {
  TextDfa out;
  if (literals.empty()) return out;
  std::vector<std::map<uint32_t, uint32_t>> trie(1);
  std::vector<char> ends(1, 0);
  for (const std::string& text : literals) {
    uint32_t at = 0;
    for (size_t pos = 0; pos < text.size();) {
      const uint32_t code = next_code_point(text, &pos);
      const auto [to, added] = trie[at].emplace(code, static_cast<uint32_t>(trie.size()));
      at = to->second;
      if (added) {
        trie.emplace_back();
        ends.push_back(0);
      }
    }
    ends[at] = 1;
  }
  out.states.resize(trie.size());
  for (size_t s = 0; s < trie.size(); ++s) {
    out.states[s].accepting = ends[s] != 0;
    for (const auto& [code, to] : trie[s]) out.states[s].edges.push_back({code, code, to});
  }
  return out;
}

Result<TextDfa> text_of_length(uint64_t min, uint64_t max) {
  TextDfa out;
  if (min > max) return out;
  const uint64_t last = max == UINT64_MAX ? min : max;
  if (last >= kMaxTextStates) return too_large();
  const CodeSet all = CodeSet::all();
  out.states.resize(last + 1);
  for (uint32_t s = 0; s <= last; ++s) {
    out.states[s].accepting = s >= min;
    const bool loops = s == last;
    if (loops && max != UINT64_MAX) continue;
    for (const CodeRange& range : all.ranges()) out.states[s].edges.push_back({range.lo, range.hi, loops ? s : s + 1});
  }
  return out;
}

Result<TextDfa> intersect(const TextDfa& a, const TextDfa& b) { return product(a, b, false); }
Result<TextDfa> subtract(const TextDfa& a, const TextDfa& b) { return product(a, b, true); }

}  // namespace k3::grammar
