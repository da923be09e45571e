// MLA decode and prefill at K3's head dimensions, kv_b and cache in BF16. GFLOP/s counts the work of the form that
// runs: absorbed 2 (2 R + rope) per pair and head and 2 R (nope + value) per token; expanded 2 (nope + rope + value)
// per pair and 2 R (nope + value) per cached token (once for every 512 query tokens; on BF16 products, from isa 3 on, once).
// GB/s is cache and kv_b.
#include <benchmark/benchmark.h>

#include "k3/ops/mla/mla_cases.h"

namespace k3::ops {
namespace {

void run(benchmark::State& state, MlaForm form) {
  MlaCase c{.heads = state.range(0), .nope = 128, .rope = 64, .value = 128, .rank = 512};
  c.lengths = {state.range(1)};
  c.history = {state.range(2)};
  c.page_tokens = 64;
  c.cache = DType::bf16;
  c.scheme = Scheme::bf16;
  const auto isa = static_cast<Isa>(state.range(4));
  if (isa > detect_isa()) return state.SkipWithError("not on this processor");
  MlaData data(c);
  Workspace workspace;
  ThreadPool pool(static_cast<int>(state.range(3)));
  const bool matrix = isa >= Isa::avx512bf16;
  const Ctx ctx{.pool = &pool, .workspace = &workspace, .isa = isa, .policy = matrix ? Policy::bf16 : Policy::exact};
  data.append(ctx);
  std::vector<float> out(static_cast<size_t>(data.out_size()));
  const MlaArgs args = data.args(out.data(), form);
  for (auto _ : state) mla(ctx, args);
  const double heads = static_cast<double>(c.heads), tokens = static_cast<double>(c.lengths[0]);
  const double cached = tokens + static_cast<double>(c.history[0]);
  const double pairs = tokens * (static_cast<double>(c.history[0]) + (tokens + 1) / 2);
  const double projection = 2 * 512 * 256;
  const double flops = form == MlaForm::absorbed
                           ? pairs * 2 * 1088 + tokens * projection
                           : pairs * 2 * 320 + projection * cached * (matrix ? 1 : std::ceil(tokens / 512));
  state.SetLabel("bf16");
  using Counter = benchmark::Counter;
  state.counters["tokens/s"] = Counter(tokens, Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] = Counter(flops * heads * 1e-9, Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = Counter((cached * 1152 + heads * projection) * 1e-9, Counter::kIsIterationInvariantRate);
}

void absorbed(benchmark::State& state) { run(state, MlaForm::absorbed); }
void expanded(benchmark::State& state) { run(state, MlaForm::expanded); }

constexpr int64_t kAvx2 = static_cast<int64_t>(Isa::avx2), kAvx512 = static_cast<int64_t>(Isa::avx512),
                  kDots = static_cast<int64_t>(Isa::avx512bf16), kAmx = static_cast<int64_t>(Isa::amx);
const std::vector<std::string> kNames = {"heads", "tokens", "history", "threads", "isa"};

BENCHMARK(absorbed)
    ->ArgNames(kNames)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->ArgsProduct({{4, 96}, {1}, {0, 1023, 16383}, {1, 2}, {kAvx512}});
BENCHMARK(absorbed)->ArgNames(kNames)->Unit(benchmark::kMicrosecond)->UseRealTime()->Args({96, 1, 1023, 1, kAvx2});
BENCHMARK(absorbed)
    ->ArgNames(kNames)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->ArgsProduct({{4, 96}, {128}, {0}, {1, 2}, {kAvx512}});
BENCHMARK(expanded)
    ->ArgNames(kNames)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->ArgsProduct({{4, 96}, {512}, {0, 512}, {1, 2}, {kAvx512, kDots, kAmx}});
BENCHMARK(expanded)
    ->ArgNames(kNames)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->Args({4, 512, 0, 1, kAvx2})
    ->Args({4, 2048, 0, 1, kAvx512})
    ->Args({4, 2048, 0, 1, kDots})
    ->Args({4, 2048, 0, 1, kAmx})
    ->Args({12, 512, 3584, 1, kAvx512})
    ->Args({12, 512, 3584, 1, kDots})
    ->Args({12, 512, 3584, 1, kAmx});

// Where the two forms meet (mla_expansion_pays).
BENCHMARK(absorbed)
    ->Name("meet/absorbed")
    ->ArgNames(kNames)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->ArgsProduct({{2, 12, 96}, {8, 16, 32, 48, 64, 96}, {256, 2048}, {2}, {kDots}});
BENCHMARK(expanded)
    ->Name("meet/expanded")
    ->ArgNames(kNames)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->ArgsProduct({{2, 12, 96}, {8, 16, 32, 48, 64, 96}, {256, 2048}, {2}, {kDots}});

}  // namespace
}  // namespace k3::ops
