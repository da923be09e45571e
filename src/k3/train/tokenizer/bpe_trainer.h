// Purpose:  learns the ranks of a byte-level BPE from counted words.
// Shapes:   none.
// Units:    counts as in word_counts.h.
// Memory:   4 bytes a byte of the distinct words, 4 bytes for each place where a pair occurs or occurred.
// Threads:  one.
// Errors:   invalid_argument when the words have fewer pairs than ranks are wanted, naming the largest vocabulary; for more ranks
//           than ids exist.
// Source:   Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units" (2016), over bytes. Ranks 0 ..
//           255 are the bytes; each further rank joins the adjacent pair with the highest count, of equal counts the one with the
//           smaller left rank, then the smaller right rank, everywhere from left to right. A pair counts at each place where it
//           stands ("aaa" holds (a, a) twice). No randomness and no order of the words enters the result.
//           Counts only change beside the places of a merge, and a pair gains places only in the step that makes the later of its
//           two ranks; so each pair has one entry in a heap, which is checked against the count when it comes up.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "k3/base/result.h"
#include "k3/train/tokenizer/word_counts.h"

namespace k3::train {

inline constexpr int64_t kByteRanks = 256;

struct BpeRanks {
  std::vector<std::string> tokens;  // bytes of each rank
  int64_t text_bytes = 0, text_tokens = 0;  // of the counted words, in count units
};

struct BpeOptions {
  int64_t ranks = 0;                     // all, the 256 bytes among them
  int64_t least_count = 2 * kCountUnit;  // a pair must occur so often
};

Result<BpeRanks> train_bpe(const WordCounts& words, const BpeOptions& options,
                           const std::function<void(int64_t ranks)>& progress = {});

// The same by counting everything anew for each rank: the oracle of tests.
Result<BpeRanks> train_bpe_naive(const WordCounts& words, const BpeOptions& options);

}  // namespace k3::train
