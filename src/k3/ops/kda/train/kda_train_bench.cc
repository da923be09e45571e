// KDA training step of small models: forward and backward of 4,096 tokens in packed sequences. GFLOP/s counts the products of the
// chunk form, 6 D^2 + 3 C D a token and head forward and 18 D^2 + 10 C D backward (C = 16).
#include <benchmark/benchmark.h>

#include "k3/ops/kda/train/kda_train_cases.h"

namespace k3::ops {
namespace {

void run(benchmark::State& state, bool backward) {
  KdaTrainCase c;
  c.heads = state.range(0), c.dim = state.range(1);
  c.lengths.assign(static_cast<size_t>(4096 / state.range(2)), state.range(2));
  c.states = false;
  const auto isa = static_cast<Isa>(state.range(4));
  if (isa > detect_isa()) return state.SkipWithError("not on this processor");
  KdaTrainData<float> data(c);
  Workspace workspace;
  ThreadPool pool(static_cast<int>(state.range(3)));
  const Ctx ctx{.pool = &pool, .workspace = &workspace, .isa = isa};
  KdaTrainSaved saved;
  if (backward) kda_train_forward(ctx, data.args(), data.rows(data.y), &saved);
  for (auto _ : state) {
    const Workspace::Scope scope(workspace);
    if (backward) {
      kda_train_vjp(ctx, data.args(), saved, data.rows(data.dy), data.grads());
    } else {
      kda_train_forward(ctx, data.args(), data.rows(data.y), &saved);
    }
  }
  state.SetLabel("f32");
  const double d = static_cast<double>(c.dim), work = backward ? 18 * d * d + 160 * d : 6 * d * d + 48 * d;
  state.counters["GFLOP/s"] = benchmark::Counter(work * 4096 * static_cast<double>(c.heads) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void forward(benchmark::State& state) { run(state, false); }
void vjp(benchmark::State& state) { run(state, true); }

constexpr int64_t kAvx2 = static_cast<int64_t>(Isa::avx2), kAvx512 = static_cast<int64_t>(Isa::avx512);

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"heads", "dim", "tokens", "threads", "isa"})->Unit(benchmark::kMillisecond)->UseRealTime();
  for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{3, 32}, {2, 64}, {1, 128}}) {
    for (const int64_t threads : {1, 2}) b->Args({heads, dim, 512, threads, kAvx512});
    b->Args({heads, dim, 512, 1, kAvx2});
  }
}
BENCHMARK(forward)->Name("kda_train_forward")->Apply(shapes);
BENCHMARK(vjp)->Name("kda_train_vjp")->Apply(shapes);

}  // namespace
}  // namespace k3::ops
