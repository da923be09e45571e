#include "k3/cli/bench/bench_cases.h"

#include <fmt/format.h>

#include <algorithm>

namespace k3::cli {

std::string BenchCase::label() const {
  const std::string text = fmt::format("{} {}", phase == Phase::prefill ? "prefill" : "decode", tokens);
  return depth > 0 ? fmt::format("{} @{}", text, depth) : text;
}

std::vector<BenchCase> bench_cases(const BenchOptions& options, int all_threads) {
  std::vector<BenchCase> cases;
  const auto add_phase = [&](BenchCase c, Phase phase, const std::vector<int64_t>& lengths) {
    c.phase = phase;
    for (const int64_t depth : options.depth) {
      for (const int64_t tokens : lengths) {
        if (tokens == 0) continue;
        c.depth = depth;
        c.tokens = tokens;
        cases.push_back(c);
      }
    }
  };
  for (const int threads : options.threads.empty() ? std::vector<int>{all_threads} : options.threads) {
    for (const std::string& policy : options.policies) {
      for (const int64_t batch : options.batch) {
        const BenchCase c{.threads = threads, .policy = policy, .batch = batch};
        add_phase(c, Phase::prefill, options.prefill);
        add_phase(c, Phase::decode, options.decode);
      }
    }
  }
  return cases;
}

int64_t needed_ctx(const std::vector<BenchCase>& cases) {
  int64_t tokens = 1;
  for (const BenchCase& c : cases) tokens = std::max(tokens, c.depth + c.tokens);
  return tokens;
}

}  // namespace k3::cli
