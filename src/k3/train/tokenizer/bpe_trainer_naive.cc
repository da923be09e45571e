// The obvious trainer: all pairs are counted anew for each rank.
#include <map>

#include "k3/train/tokenizer/bpe_trainer.h"

namespace k3::train {
namespace {

using Word = std::vector<int32_t>;

void merge_word(Word& word, int32_t a, int32_t b, int32_t c) {
  Word out;
  for (size_t i = 0; i < word.size(); ++i) {
    const bool here = i + 1 < word.size() && word[i] == a && word[i + 1] == b;
    out.push_back(here ? c : word[i]);
    if (here) ++i;
  }
  word = out;
}

}  // namespace

Result<BpeRanks> train_bpe_naive(const WordCounts& counts, const BpeOptions& options) {
  BpeRanks ranks;
  for (int64_t byte = 0; byte < kByteRanks; ++byte) ranks.tokens.emplace_back(1, static_cast<char>(byte));
  std::vector<Word> words;
  for (int64_t i = 0; i < counts.words(); ++i) {
    words.emplace_back();
    for (const char c : counts.word(i)) words.back().push_back(static_cast<uint8_t>(c));
  }
  while (static_cast<int64_t>(ranks.tokens.size()) < options.ranks) {
    std::map<std::pair<int32_t, int32_t>, int64_t> pairs;
    for (size_t w = 0; w < words.size(); ++w) {
      for (size_t i = 0; i + 1 < words[w].size(); ++i) pairs[{words[w][i], words[w][i + 1]}] += counts.count(static_cast<int64_t>(w));
    }
    auto best = pairs.end();
    for (auto it = pairs.begin(); it != pairs.end(); ++it) {
      if (best == pairs.end() || it->second > best->second) best = it;  // the map is in order of the tie rule
    }
    if (best == pairs.end() || best->second < options.least_count) {
      return fail(Code::invalid_argument, "the words give {} ranks", ranks.tokens.size());
    }
    const auto [a, b] = best->first;
    for (Word& word : words) merge_word(word, a, b, static_cast<int32_t>(ranks.tokens.size()));
    ranks.tokens.push_back(ranks.tokens[static_cast<size_t>(a)] + ranks.tokens[static_cast<size_t>(b)]);
  }
  for (size_t w = 0; w < words.size(); ++w) {
    const int64_t count = counts.count(static_cast<int64_t>(w));
    ranks.text_bytes += count * static_cast<int64_t>(counts.word(static_cast<int64_t>(w)).size());
    ranks.text_tokens += count * static_cast<int64_t>(words[w].size());
  }
  return ranks;
}

}  // namespace k3::train
