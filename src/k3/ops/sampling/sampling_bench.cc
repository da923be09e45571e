// One choice from the real vocabulary of 163,840, by filter.
#include <benchmark/benchmark.h>

#include "k3/ops/sampling/sampling.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

void sample_one(benchmark::State& state, const SamplingParams& params) {
  constexpr int64_t kVocab = 163840;
  const std::vector<float> logits = random_normal(kVocab, 1, 3.0F);
  Sampler sampler(params, kVocab);
  for (auto _ : state) benchmark::DoNotOptimize(sampler.sample(logits, {}, {}).ok());
  state.SetLabel("f32");
  state.counters["GB/s"] = benchmark::Counter(4e-9 * kVocab, benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(sample_one, greedy, SamplingParams{.temperature = 0})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample_one, plain, SamplingParams{})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample_one, top_p, SamplingParams{.top_p = 0.95F})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample_one, top_p_flat, SamplingParams{.temperature = 100, .top_p = 0.95F})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample_one, top_k, SamplingParams{.top_k = 50})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample_one, top_k_large, SamplingParams{.top_k = 50000})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(sample_one, min_p, SamplingParams{.min_p = 0.05F})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace k3::ops
