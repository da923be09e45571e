#include "k3/train/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <queue>

#include "k3/format/tokenizer/rank_table.h"
#include "k3/train/tokenizer/pair_table.h"

namespace k3::train {
namespace {

using Rank = uint32_t;

struct Entry {
  int64_t count;
  Rank left, right;
  // The heap gives the greatest: more places first, then the lower ranks.
  bool operator<(const Entry& other) const {
    if (count != other.count) return count < other.count;
    if (left != other.left) return left > other.left;
    return right > other.right;
  }
};

class Trainer {
 public:
  explicit Trainer(const WordCounts& words) : words_(words) {
    symbols_.reserve(static_cast<size_t>(words.total_bytes()));
    begin_.reserve(static_cast<size_t>(words.words()));
    for (int64_t i = 0; i < words.words(); ++i) {
      begin_.push_back(symbols_.size());
      const std::string_view word = words.word(i);
      size_.push_back(static_cast<uint32_t>(word.size()));
      for (const char c : word) symbols_.push_back(static_cast<uint8_t>(c));
    }
    for (int64_t byte = 0; byte < kByteRanks; ++byte) tokens_.emplace_back(1, static_cast<char>(byte));
    count_byte_pairs();
  }

  // The next rank, or false when no pair has least_count places.
  bool step(int64_t least_count) {
    while (!heap_.empty()) {
      const Entry top = heap_.top();
      heap_.pop();
      PairTable::Pair& pair = pairs_.at(pairs_.find_or_add(top.left, top.right));
      if (pair.count != top.count) {
        if (pair.count > 0) heap_.push({pair.count, top.left, top.right});
        continue;
      }
      if (top.count < least_count) return false;
      merge(top.left, top.right, std::exchange(pair.words, {}));
      return true;
    }
    return false;
  }

  int64_t ranks() const { return static_cast<int64_t>(tokens_.size()); }

  BpeRanks take() {
    BpeRanks out{std::move(tokens_), 0, 0};
    for (int64_t i = 0; i < words_.words(); ++i) {
      out.text_bytes += words_.count(i) * static_cast<int64_t>(words_.word(i).size());
      out.text_tokens += words_.count(i) * size_[static_cast<size_t>(i)];
    }
    return out;
  }

 private:
  void count_byte_pairs() {
    std::vector<uint32_t> index(static_cast<size_t>(kByteRanks * kByteRanks), PairTable::kNone);
    for (size_t w = 0; w < begin_.size(); ++w) {
      const Rank* word = symbols_.data() + begin_[w];
      for (uint32_t i = 0; i + 1 < size_[w]; ++i) {
        uint32_t& at = index[word[i] * static_cast<size_t>(kByteRanks) + word[i + 1]];
        if (at == PairTable::kNone) at = pairs_.find_or_add(word[i], word[i + 1]);
        pairs_.at(at).add(words_.count(static_cast<int64_t>(w)), static_cast<uint32_t>(w));
      }
    }
    for (uint32_t i = 0; i < pairs_.size(); ++i) heap_.push({pairs_.at(i).count, pairs_.at(i).left, pairs_.at(i).right});
  }

  // What a merge of (a, b) to c does to its neighbours: x a b y becomes x c y, so that every place of (x, a) that is lost is a
  // place of (x, c) that is won, and likewise on the right. Gathered by neighbour, then applied once for each.
  struct Side {
    std::vector<uint32_t> pair;  // by neighbour: the new pair, kNone when it has none yet
    std::vector<Rank> touched;
  };

  void merge(Rank a, Rank b, std::vector<uint32_t> places) {
    const auto c = static_cast<Rank>(tokens_.size());
    tokens_.push_back(tokens_[a] + tokens_[b]);
    left_.pair.resize(tokens_.size(), PairTable::kNone);
    right_.pair.resize(tokens_.size(), PairTable::kNone);
    int64_t chained = 0;  // places a b a b: (b, a) lost, (c, c) won
    for (const uint32_t w : places) merge_word(w, a, b, c, &chained);

    for (const Rank x : left_.touched) pairs_.at(pairs_.find_or_add(x, a)).count -= settle(left_, x);
    for (const Rank y : right_.touched) pairs_.at(pairs_.find_or_add(b, y)).count -= settle(right_, y);
    left_.touched.clear();
    right_.touched.clear();
    if (chained > 0) {
      pairs_.at(pairs_.find_or_add(b, a)).count -= chained;
      heap_.push({pairs_.at(pairs_.find_or_add(c, c)).count, c, c});
    }
    pairs_.at(pairs_.find_or_add(a, b)).count = 0;
  }

  // Puts the new pair of a neighbour into the heap and returns its count.
  int64_t settle(Side& side, Rank neighbour) {
    const PairTable::Pair& pair = pairs_.at(std::exchange(side.pair[neighbour], PairTable::kNone));
    heap_.push({pair.count, pair.left, pair.right});
    return pair.count;
  }

  void merge_word(uint32_t w, Rank a, Rank b, Rank c, int64_t* chained) {
    Rank* word = symbols_.data() + begin_[w];
    const uint32_t size = size_[w];
    const int64_t count = words_.count(w);
    uint32_t out = 0;
    bool after_merge = false;
    for (uint32_t in = 0; in < size; ++out) {
      const bool here = in + 1 < size && word[in] == a && word[in + 1] == b;
      if (here && after_merge) {
        *chained += count;
        pairs_.at(pairs_.find_or_add(c, c)).add(count, w);
      } else if (here && out > 0) {
        won(left_, word[out - 1], word[out - 1], c, count, w);
      } else if (after_merge) {
        won(right_, word[in], c, word[in], count, w);
      }
      word[out] = here ? c : word[in];
      in += here ? 2 : 1;
      after_merge = here;
    }
    size_[w] = out;
  }

  void won(Side& side, Rank neighbour, Rank left, Rank right, int64_t count, uint32_t w) {
    uint32_t& pair = side.pair[neighbour];
    if (pair == PairTable::kNone) {
      pair = pairs_.find_or_add(left, right);
      side.touched.push_back(neighbour);
    }
    pairs_.at(pair).add(count, w);
  }

  const WordCounts& words_;
  std::vector<Rank> symbols_;     // of all words, each at its place with what is left of it
  std::vector<size_t> begin_;     // of each word in symbols_
  std::vector<uint32_t> size_;    // symbols that each word has now
  std::vector<std::string> tokens_;
  PairTable pairs_;
  std::priority_queue<Entry> heap_;
  Side left_, right_;
};

Status check_ranks(const BpeOptions& options) {
  if (options.ranks >= kByteRanks && options.ranks <= kMaxVocab) return {};
  return fail(Code::invalid_argument, "{} ranks; give {} (the bytes) to {}", options.ranks, kByteRanks, kMaxVocab);
}

Error too_few(int64_t have, int64_t want) {
  return fail(Code::invalid_argument,
              "the texts give {} ranks, {} are wanted: no other pair occurs often enough; ask for a smaller vocabulary or give more "
              "text",
              have, want);
}

}  // namespace

Result<BpeRanks> train_bpe(const WordCounts& words, const BpeOptions& options, const std::function<void(int64_t)>& progress) {
  K3_TRY(check_ranks(options));
  Trainer trainer(words);
  while (trainer.ranks() < options.ranks) {
    if (!trainer.step(options.least_count)) return too_few(trainer.ranks(), options.ranks);
    if (progress) progress(trainer.ranks());
  }
  return trainer.take();
}

}  // namespace k3::train
