// rms_norm and glu at K3's widths: bytes read and written per second.
#include <benchmark/benchmark.h>

#include "k3/ops/rms_norm/rms_norm.h"
#include "k3/ops/situ_glu/situ_glu.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

constexpr int64_t kTokens = 16;

void norm(benchmark::State& state, Isa isa) {
  if (isa > detect_isa()) return state.SkipWithError("instruction set not available");
  constexpr int64_t kWidth = 7168;
  std::vector<float> x = random_normal(kTokens * kWidth, 1), w(kWidth, 1.0F), out(x.size());
  TestRun run(isa);
  for (auto _ : state) {
    rms_norm(run.ctx, matrix(x.data(), kTokens, kWidth), Tensor(w.data(), DType::f32, {kWidth}), 1e-5F,
             matrix(out.data(), kTokens, kWidth));
  }
  state.SetLabel("f32");
  state.counters["GB/s"] = benchmark::Counter(8e-9 * kTokens * kWidth, benchmark::Counter::kIsIterationInvariantRate);
}

void situ(benchmark::State& state, Isa isa) {
  if (isa > detect_isa()) return state.SkipWithError("instruction set not available");
  constexpr int64_t kWidth = 3072;
  std::vector<float> g = random_normal(kTokens * kWidth, 1), u = random_normal(kTokens * kWidth, 2), out(g.size());
  TestRun run(isa);
  for (auto _ : state) {
    glu(run.ctx, matrix(g.data(), kTokens, kWidth), matrix(u.data(), kTokens, kWidth), {GluKind::situ, 4.0F, 25.0F},
        matrix(out.data(), kTokens, kWidth));
  }
  state.SetLabel("f32");
  state.counters["GB/s"] = benchmark::Counter(12e-9 * kTokens * kWidth, benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(norm, scalar, Isa::scalar);
BENCHMARK_CAPTURE(norm, avx2, Isa::avx2);
BENCHMARK_CAPTURE(norm, avx512, Isa::avx512);
BENCHMARK_CAPTURE(situ, scalar, Isa::scalar);
BENCHMARK_CAPTURE(situ, avx2, Isa::avx2);
BENCHMARK_CAPTURE(situ, avx512, Isa::avx512);

}  // namespace
}  // namespace k3::ops
