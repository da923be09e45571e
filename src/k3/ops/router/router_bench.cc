// router at the released sizes: 896 choose 16, 256 choose 8.
#include <benchmark/benchmark.h>

#include "k3/ops/router/router_cases.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

void route(benchmark::State& state) {
  const int64_t tokens = state.range(0), experts = state.range(1), topk = state.range(2);
  std::vector<float> logits = random_normal(tokens * experts, 1), bias = random_normal(experts, 2, 0.1F);
  std::vector<int32_t> ids(static_cast<size_t>(tokens * topk));
  std::vector<float> weights(ids.size());
  TestRun run(detect_isa(), static_cast<int>(state.range(3)));
  for (auto _ : state) {
    router(run.ctx, matrix(logits.data(), tokens, experts), Tensor(bias.data(), DType::f32, {experts}),
           {.topk = topk, .renormalise = true, .scale = 1}, Tensor(ids.data(), DType::i32, {tokens, topk}),
           matrix(weights.data(), tokens, topk));
    benchmark::ClobberMemory();
  }
  state.SetLabel("f32");
  state.counters["GB/s"] =
      benchmark::Counter(4e-9 * static_cast<double>(tokens * experts), benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK(route)
    ->ArgNames({"T", "E", "topk", "threads"})
    ->ArgsProduct({{1, 4, 512}, {896}, {16}, {1, 2}})
    ->Args({1, 256, 8, 1})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace k3::ops
