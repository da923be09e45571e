// moe at K3's widths (R 3584, F 3072, top 16, MXFP4) with fewer experts: bytes of expert weights and products per second.
#include <benchmark/benchmark.h>

#include "k3/ops/moe/moe.h"
#include "k3/ops/moe/moe_cases.h"

namespace k3::ops {
namespace {

void moe_k3(benchmark::State& state, Policy policy) {
  constexpr int64_t kExperts = 32, kTopk = 16, kWidth = 3584, kHidden = 3072;
  const int64_t tokens = state.range(0);
  const OwnedExperts experts = random_experts(Scheme::mxfp4, kExperts, kWidth, kHidden, 1);
  std::vector<float> z = random_normal(tokens * kWidth, 2), out(z.size());
  Routing r = random_routing(tokens, kExperts, kTopk, 3);
  TestRun run(detect_isa(), static_cast<int>(state.range(1)), policy);
  run.ctx.deterministic = false;
  std::vector<bool> chosen(kExperts);
  for (const int32_t e : r.ids) chosen[static_cast<size_t>(e)] = true;
  const auto active = static_cast<double>(std::count(chosen.begin(), chosen.end(), true));
  for (auto _ : state) {
    moe(run.ctx, matrix(z.data(), tokens, kWidth), Tensor(r.ids.data(), DType::i32, {tokens, kTopk}),
        matrix(r.weights.data(), tokens, kTopk), experts.views, {GluKind::situ, 4.0F, 25.0F},
        matrix(out.data(), tokens, kWidth));
    benchmark::ClobberMemory();
  }
  state.SetLabel("mxfp4");
  using benchmark::Counter;
  const double weights = 3.0 * kWidth * kHidden;
  state.counters["GB/s"] = Counter(1e-9 * active * weights * 17 / 32, Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] =
      Counter(2e-9 * static_cast<double>(tokens * kTopk) * weights, Counter::kIsIterationInvariantRate);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{1, 4, 16, 512}, {1, 2}})->ArgNames({"T", "threads"})->UseRealTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(moe_k3, bf16, Policy::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(moe_k3, exact, Policy::exact)->Apply(shapes);

}  // namespace
}  // namespace k3::ops
