// Internal to format/grammar. Which tokens a thread allows, remembered by what was looked at: the thread itself, then frame
// by frame of its stack for the tokens that end what the thread is in. A mask is the union over the nodes of that chain.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "k3/format/grammar/automaton/program.h"
#include "k3/format/grammar/mask/byte_trie.h"
#include "k3/format/grammar/mask/stepper.h"

namespace k3::grammar {

class MaskCache {
 public:
  MaskCache(const Program& program, const Vocabulary& vocabulary) : p_(program), v_(vocabulary) {}

  // Adds to `mask` the ordinary tokens that `thread` allows. May be called concurrently.
  void add(const Thread& thread, const std::vector<Frame>& frames, std::span<uint32_t> mask);

 private:
  struct Key {
    uint32_t state, low, high, room;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const {
      uint64_t h = k.state * 0x9E3779B97F4A7C15U;
      h = (h ^ k.low) * 0xD1B54A32D192ED03U;
      h = (h ^ k.high ^ (static_cast<uint64_t>(k.room) << 32)) * 0x9E3779B97F4A7C15U;
      return static_cast<size_t>(h ^ h >> 29);
    }
  };
  struct Item {
    uint32_t plain = UINT32_MAX;  // characters that plain tokens may have; UINT32_MAX: no plain tokens
    bool unusual = false;         // which trie `open` refers to
    std::vector<int32_t> sparse;  // tokens beside the plain ones
    std::vector<uint32_t> dense;  // the same as words when that is shorter
    std::vector<uint32_t> open;   // trie nodes at which the stack below is asked
    std::unordered_map<Key, std::unique_ptr<Item>, KeyHash> below;
  };
  class Walk;

  Key key_of(uint32_t state, uint32_t count, uint32_t room) const;
  std::unique_ptr<Item> first(const Thread& thread, uint32_t depth);
  std::unique_ptr<Item> next(const Item& above, const Frame& frame, uint32_t depth);
  void finish(Item& item);
  void apply(const Item& item, std::span<uint32_t> mask) const;

  const Program& p_;
  const Vocabulary& v_;
  std::mutex mutex_;
  std::unordered_map<Key, std::unique_ptr<Item>, KeyHash> items_;
  size_t bytes_ = 0;
};

}  // namespace k3::grammar
