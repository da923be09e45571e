// KDA decode and prefill at D = 128. Decode reports the state traffic (one read and one write), prefill the floating
// point work of the plain recurrence (7 D^2 a token and head), so forms can be compared.
#include <benchmark/benchmark.h>

#include "k3/ops/kda/kda_cases.h"

namespace k3::ops {
namespace {

void run(benchmark::State& state, KdaForm form) {
  KdaCase c;
  c.heads = state.range(0);
  c.dim = 128;
  c.lengths.assign(static_cast<size_t>(state.range(1)), state.range(2));
  const auto isa = static_cast<Isa>(state.range(4));
  if (isa > detect_isa()) return state.SkipWithError("not on this processor");
  KdaData data(c);
  Workspace workspace;
  ThreadPool pool(static_cast<int>(state.range(3)));
  const Ctx ctx{.pool = &pool, .workspace = &workspace, .isa = isa};
  std::vector<void*> pointers;
  for (auto& s : data.states) pointers.push_back(s.data());
  std::vector<float> out(data.v.size());
  const KdaArgs args = data.args(pointers, out.data(), form);
  for (auto _ : state) kda(ctx, args);
  const double tokens = static_cast<double>(data.tokens()), cells = 128.0 * 128 * static_cast<double>(c.heads);
  state.SetLabel("f32");
  using Counter = benchmark::Counter;
  state.counters["tokens/s"] = Counter(tokens, Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] = Counter(7 * cells * tokens * 1e-9, Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] =
      Counter(8 * cells * static_cast<double>(c.lengths.size()) * 1e-9, Counter::kIsIterationInvariantRate);
}

void recurrent(benchmark::State& state) { run(state, KdaForm::recurrent); }
void chunk(benchmark::State& state) { run(state, KdaForm::chunk); }
void tiles(benchmark::State& state) { run(state, KdaForm::tiles); }

constexpr int64_t kAvx2 = static_cast<int64_t>(Isa::avx2), kAvx512 = static_cast<int64_t>(Isa::avx512),
                  kAmx = static_cast<int64_t>(Isa::amx);
const std::vector<std::string> kNames = {"heads", "sequences", "tokens", "threads", "isa"};

// Decode; 16 sequences of 96 heads exceed every cache (100 MB).
BENCHMARK(recurrent)
    ->ArgNames(kNames)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->ArgsProduct({{4, 96}, {1, 16}, {1}, {1, 2}, {kAvx512}});
BENCHMARK(recurrent)->ArgNames(kNames)->Unit(benchmark::kMicrosecond)->UseRealTime()->Args({96, 1, 1, 1, kAvx2});
// Crossover and prefill.
BENCHMARK(recurrent)
    ->ArgNames(kNames)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->ArgsProduct({{16}, {1}, {4, 8, 12, 16}, {1}, {kAvx2, kAvx512}});
BENCHMARK(recurrent)
    ->ArgNames(kNames)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->ArgsProduct({{4, 96}, {1}, {512}, {1, 2}, {kAvx2, kAvx512}});
BENCHMARK(chunk)
    ->ArgNames(kNames)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->ArgsProduct({{16}, {1}, {4, 8, 12, 16}, {1}, {kAvx2, kAvx512}});
BENCHMARK(chunk)
    ->ArgNames(kNames)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->ArgsProduct({{4, 96}, {1}, {512}, {1, 2}, {kAvx2, kAvx512}});
// Against chunk on AVX-512: k3_ops_bench --benchmark_filter='^(chunk|tiles)/.*isa:[24]'
BENCHMARK(tiles)
    ->ArgNames(kNames)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->ArgsProduct({{16}, {1}, {4, 8, 12, 16}, {1}, {kAmx}});
BENCHMARK(tiles)
    ->ArgNames(kNames)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->ArgsProduct({{4, 96}, {1}, {512}, {1, 2}, {kAmx}});

}  // namespace
}  // namespace k3::ops
