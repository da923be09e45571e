#include "k3/format/grammar/mask/mask_cache.h"

#include <algorithm>
#include <array>

namespace k3::grammar {
namespace {

constexpr size_t kMostBytes = size_t{32} << 20;  // then everything is forgotten
constexpr size_t kDenseTokens = 2048;            // more tokens than this are kept as words
constexpr uint32_t kRoom = 64;                   // frames; no token opens more

}  // namespace

// Collects the tokens below trie nodes that a set of threads can consume.
class MaskCache::Walk {
 public:
  Walk(const Program& program, const ByteTrie& trie, Item& item, uint32_t bottom_depth)
      : p_(program), trie_(trie), item_(item), stepper_(program, bottom_depth) {}

  Stepper& stepper() { return stepper_; }

  // All tokens below `node`, for threads that have consumed the bytes to it.
  void below(const std::vector<Thread>& threads, uint32_t node) {
    if (threads.size() == 1 && p_.states[threads[0].state].simple) {
      const Rule::Kind kind = p_.rules[p_.states[threads[0].state].rule].kind;
      return kind == Rule::Kind::counted ? run<true>(threads[0], node) : run<false>(threads[0], node);
    }
    const size_t level = trie_.depth[node];
    if (levels_.size() <= level) levels_.resize(level + 1);
    for (uint32_t child = node + 1; child < trie_.end[node]; child = trie_.end[child]) {
      const size_t mark = stepper_.frames().size();
      std::vector<Thread> next = std::move(levels_[level]);
      const bool ended = stepper_.step(threads, trie_.byte[child], next);
      reached(child, next, ended);
      levels_[level] = std::move(next);
      stepper_.frames().resize(mark);
    }
  }

 private:
  void reached(uint32_t node, const std::vector<Thread>& threads, bool ended) {
    if (threads.empty() && !ended) return;
    if (trie_.token[node] >= 0) item_.sparse.push_back(trie_.token[node]);
    if (node + 1 == trie_.end[node]) return;
    if (ended) item_.open.push_back(node);
    if (!threads.empty()) below(threads, node);
  }

  // One thread inside one automaton: a table look-up a trie node until something is called or ends.
  template <bool kCounted>
  void run(const Thread& thread, uint32_t node) {
    at_[trie_.depth[node]] = thread;
    const uint32_t end = trie_.end[node];
    for (uint32_t i = node + 1; i < end;) {
      const size_t depth = trie_.depth[i];
      const Thread& before = at_[depth - 1];
      Thread after = before;
      if constexpr (kCounted) {
        if (!stepper_.move(before, trie_.byte[i], after)) after.state = kNoState;
      } else {
        after.state = p_.step(before.state, trie_.byte[i]);
      }
      if (after.state == kNoState) {
        i = trie_.end[i];
        continue;
      }
      if (p_.states[after.state].simple) {
        at_[depth] = after;
        if (trie_.token[i] >= 0) item_.sparse.push_back(trie_.token[i]);
        ++i;
        continue;
      }
      const size_t mark = stepper_.frames().size();
      std::vector<Thread> next;
      const bool ended = stepper_.close(after, next);
      reached(i, next, ended);
      stepper_.frames().resize(mark);
      i = trie_.end[i];
    }
  }

  const Program& p_;
  const ByteTrie& trie_;
  Item& item_;
  Stepper stepper_;
  std::vector<std::vector<Thread>> levels_;
  std::array<Thread, 256> at_;
};

MaskCache::Key MaskCache::key_of(uint32_t state, uint32_t count, uint32_t room) const {
  const RuleInfo& rule = p_.rules[p_.states[state].rule];
  const uint32_t far = v_.longest + 1;
  Key key = {state, 0, 0, std::min(room, kRoom)};
  if (rule.kind == Rule::Kind::set) {
    key.low = count;
  } else if (rule.kind != Rule::Kind::automaton) {
    key.low = std::min(rule.min - std::min(rule.min, count), far);
    key.high = rule.max == kUnbounded ? far : std::min(rule.max - std::min(rule.max, count), far);
  }
  return key;
}

void MaskCache::finish(Item& item) {
  std::sort(item.open.begin(), item.open.end());
  item.open.erase(std::unique(item.open.begin(), item.open.end()), item.open.end());
  item.open.shrink_to_fit();
  if (item.sparse.size() > kDenseTokens) {
    item.dense.assign(v_.plain_masks[0].size(), 0);
    for (const int32_t id : item.sparse) item.dense[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
    item.sparse = {};
  } else {
    item.sparse.shrink_to_fit();
  }
  bytes_ += sizeof(Item) + 64 + 4 * (item.sparse.size() + item.dense.size() + item.open.size());
}

std::unique_ptr<MaskCache::Item> MaskCache::first(const Thread& thread, uint32_t depth) {
  auto item = std::make_unique<Item>();
  const State& state = p_.states[thread.state];
  const RuleInfo& rule = p_.rules[state.rule];
  if (state.plain_loop) {
    const bool bounded = rule.kind == Rule::Kind::counted && rule.max != kUnbounded;
    item->plain = bounded ? std::min(rule.max - std::min(rule.max, thread.count), v_.longest) : v_.longest;
    item->unusual = true;
  }
  Walk walk(p_, item->unusual ? v_.unusual : v_.all, *item, depth);
  walk.below({{thread.state, 0, thread.count}}, 0);
  finish(*item);
  return item;
}

std::unique_ptr<MaskCache::Item> MaskCache::next(const Item& above, const Frame& frame, uint32_t depth) {
  auto item = std::make_unique<Item>();
  item->unusual = above.unusual;
  Walk walk(p_, item->unusual ? v_.unusual : v_.all, *item, depth);
  std::vector<Thread> threads;
  const bool ended = walk.stepper().close({frame.ret, 0, frame.count}, threads);
  for (const uint32_t node : above.open) {
    if (ended) item->open.push_back(node);
    if (!threads.empty()) walk.below(threads, node);
  }
  finish(*item);
  return item;
}

void MaskCache::apply(const Item& item, std::span<uint32_t> mask) const {
  const auto merge = [&](const std::vector<uint32_t>& words) {
    for (size_t i = 0; i < words.size(); ++i) mask[i] |= words[i];
  };
  const auto set = [&](int32_t id) { mask[static_cast<size_t>(id) / 32] |= 1U << (id % 32); };
  if (item.plain != UINT32_MAX) {
    const size_t last = kPlainLengths - 1;
    const bool all = item.plain >= v_.longest;
    merge(all ? v_.plain_masks[last] : v_.plain_masks[std::min<size_t>(item.plain, last - 1)]);
    if (!all && item.plain >= last) {
      for (const auto& [length, id] : v_.long_plain) {
        if (length > item.plain) break;
        set(id);
      }
    }
  }
  if (!item.dense.empty()) merge(item.dense);
  for (const int32_t id : item.sparse) set(id);
}

void MaskCache::add(const Thread& thread, const std::vector<Frame>& frames, std::span<uint32_t> mask) {
  const std::lock_guard lock(mutex_);
  if (bytes_ > kMostBytes) {
    items_.clear();
    bytes_ = 0;
  }
  // What lies below the bottom of a cached walk counts only through the room that it leaves.
  const auto room_of = [&](uint32_t stack) {
    return std::min(kRoom, p_.depth_limit - std::min(p_.depth_limit, frames[stack].depth));
  };
  uint32_t stack = thread.stack, room = room_of(stack);
  auto& root = items_[key_of(thread.state, thread.count, room)];
  if (!root) root = first(thread, p_.depth_limit - room);
  Item* item = root.get();
  apply(*item, mask);
  while (!item->open.empty() && stack != 0) {
    const Frame& frame = frames[stack];
    stack = frame.parent;
    room = room_of(stack);
    auto& below = item->below[key_of(frame.ret, frame.count, room)];
    if (!below) below = next(*item, frame, p_.depth_limit - room);
    item = below.get();
    apply(*item, mask);
  }
}

}  // namespace k3::grammar
