// The tests of one `k3 bench`: the cross product of its lists, in the order in which they run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "k3/cli/options.h"

namespace k3::cli {

enum class Phase { prefill, decode };

struct BenchCase {
  int threads = 1;
  std::string policy;
  int64_t batch = 1;  // sequences in one step
  Phase phase = Phase::prefill;
  int64_t tokens = 0;  // of each sequence
  int64_t depth = 0;   // tokens of each sequence in the cache before

  std::string label() const;  // "prefill 512", "decode 64 @2048"
  int64_t total_tokens() const { return batch * tokens; }
};

// A length of 0 leaves that phase out. Threads: `all_threads` when the list is empty.
std::vector<BenchCase> bench_cases(const BenchOptions& options, int all_threads);

// Fewest tokens of context that hold every test.
int64_t needed_ctx(const std::vector<BenchCase>& cases);

}  // namespace k3::cli
