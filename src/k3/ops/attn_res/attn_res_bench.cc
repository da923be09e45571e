// attn_res at K3's width with the fewest and the most banked blocks: bytes read and written per second.
#include <benchmark/benchmark.h>

#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

void mix(benchmark::State& state) {
  constexpr int64_t kHidden = 7168;
  const int64_t tokens = state.range(0), blocks = state.range(1);
  std::vector<float> bank = random_normal(blocks * tokens * kHidden, 1), prefix = random_normal(tokens * kHidden, 2);
  std::vector<float> query = random_normal(kHidden, 3, 0.02F), out(prefix.size());
  TestRun run(detect_isa(), static_cast<int>(state.range(2)));
  for (auto _ : state) {
    attn_res(run.ctx, Tensor(bank.data(), DType::f32, {blocks, tokens, kHidden}), matrix(prefix.data(), tokens, kHidden),
             Tensor(query.data(), DType::f32, {kHidden}), 1e-5F, matrix(out.data(), tokens, kHidden));
    benchmark::ClobberMemory();
  }
  state.SetLabel("f32");
  const auto sources = static_cast<double>(blocks + 1), values = static_cast<double>(tokens * kHidden);
  using benchmark::Counter;
  // Score 2, square 2, mix 2 and the norm's share: 7 a value.
  state.counters["GFLOP/s"] = Counter(7e-9 * sources * values, Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = Counter(4e-9 * (sources + 1) * values, Counter::kIsIterationInvariantRate);
}

BENCHMARK(mix)
    ->ArgNames({"T", "blocks", "threads"})
    ->ArgsProduct({{1, 16, 512}, {1, 8}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace k3::ops
