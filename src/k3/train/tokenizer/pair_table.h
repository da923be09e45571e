// Internal to train/tokenizer. The pairs of ranks that a trainer has met: counts, the words they were met in, and where to find
// them again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace k3::train {

class PairTable {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFFU;

  struct Pair {
    uint32_t left, right;
    int64_t count = 0;
    std::vector<uint32_t> words;  // each once when added in order; words that lost the pair since remain

    void add(int64_t more, uint32_t word) {
      count += more;
      if (words.empty() || words.back() != word) words.push_back(word);
    }
  };

  PairTable() : slots_(size_t{1} << 16, kNone) {}

  uint32_t size() const { return static_cast<uint32_t>(pairs_.size()); }
  Pair& at(uint32_t index) { return pairs_[index]; }

  uint32_t find_or_add(uint32_t left, uint32_t right) {
    for (size_t i = slot(left, right);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i] == kNone) {
        slots_[i] = size();
        pairs_.push_back({left, right, 0, {}});
        if (pairs_.size() * 2 > slots_.size()) grow();
        return size() - 1;
      }
      const Pair& pair = pairs_[slots_[i]];
      if (pair.left == left && pair.right == right) return slots_[i];
    }
  }

 private:
  // The product's high half mixes both ranks well; linear probing does the rest.
  size_t slot(uint32_t left, uint32_t right) const {
    const uint64_t key = (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15U;
    return static_cast<size_t>(key ^ key >> 32) & (slots_.size() - 1);
  }
  void grow() {
    slots_.assign(slots_.size() * 2, kNone);
    for (uint32_t p = 0; p < size(); ++p) {
      size_t i = slot(pairs_[p].left, pairs_[p].right);
      while (slots_[i] != kNone) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = p;
    }
  }

  std::vector<Pair> pairs_;
  std::vector<uint32_t> slots_;
};

}  // namespace k3::train
