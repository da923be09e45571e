// linear: GFLOP/s and bytes of weights per second, by scheme, tokens and threads.
#include <benchmark/benchmark.h>

#include <vector>

#include "k3/ops/gemm/linear.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

// Args: tokens, in, out, threads. Enough copies of the weight are cycled through to defeat the caches where bytes count (T
// <= 16).
void run(benchmark::State& state, Scheme scheme, Isa isa, bool int8 = false) {
  if (isa > detect_isa()) return state.SkipWithError("instruction set not available");
  const int64_t tokens = state.range(0), in = state.range(1), out = state.range(2);
  const int64_t bytes = scheme_row_bytes(scheme, in) * out, scale_bytes = scheme_has_scales(scheme) ? in * out / 32 : 0;
  const int64_t copies = tokens <= 16 ? std::max<int64_t>(1, (int64_t{600} << 20) / bytes) : 1;
  Storage data = Storage::allocate(bytes * copies).value();
  Storage scales = Storage::allocate(scale_bytes * copies + 64).value();
  for (int64_t i = 0; i < data.size_bytes(); i += 2) {
    // 0x3C.. is a harmless number in each scheme.
    data.data()[i] = static_cast<std::byte>(i * 37 & 0x3F);
    data.data()[i + 1] = std::byte{0x3C};
  }
  std::fill(scales.bytes().begin(), scales.bytes().end(), std::byte{120});
  std::vector<float> x = random_normal(tokens * in, 1), y(static_cast<size_t>(tokens * out));
  ThreadPool pool(static_cast<int>(state.range(3)));
  Workspace workspace;
  const Ctx ctx{.pool = &pool,
                .workspace = &workspace,
                .isa = isa,
                .policy = isa >= Isa::avx512bf16 ? Policy::bf16 : Policy::exact,
                .int8_activations = int8};
  int64_t copy = 0;
  for (auto _ : state) {
    const Weight w{data.data() + copy * bytes, reinterpret_cast<const uint8_t*>(scales.data() + copy * scale_bytes), scheme,
                   out, in};
    const auto fn = [&](const Tensor& in_rows, const Tensor& out_rows) {
      linear(ctx, in_rows, w, out_rows);
    };
    fn(Tensor(x.data(), DType::f32, {tokens, in}), Tensor(y.data(), DType::f32, {tokens, out}));
    copy = (copy + 1) % copies;
    benchmark::ClobberMemory();
  }
  static constexpr const char* kNames[] = {"f32", "bf16", "f16", "mxfp4", "i8"};
  state.SetLabel(kNames[static_cast<size_t>(scheme)]);
  using benchmark::Counter;
  state.counters["GFLOP/s"] = Counter(2e-9 * static_cast<double>(tokens * in * out), Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = Counter(1e-9 * static_cast<double>(bytes + scale_bytes), Counter::kIsIterationInvariantRate);
}

void shapes(benchmark::internal::Benchmark* b) {
  for (const int64_t threads : {1, 2}) {
    for (const int64_t tokens : {1, 4, 16, 512}) {
      b->Args({tokens, 1024, 1024, threads});
      b->Args({tokens, 7168, 3072, threads});
    }
  }
  b->ArgNames({"T", "I", "O", "threads"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(run, avx512_f32, Scheme::f32, Isa::avx512)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx512_bf16, Scheme::bf16, Isa::avx512)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx512_f16, Scheme::f16, Isa::avx512)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx512_mxfp4, Scheme::mxfp4, Isa::avx512)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx512bf16_mxfp4, Scheme::mxfp4, Isa::avx512bf16)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx512bf16_bf16, Scheme::bf16, Isa::avx512bf16)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx512_i8, Scheme::i8, Isa::avx512)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx512bf16_i8, Scheme::i8, Isa::avx512bf16)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx2_i8, Scheme::i8, Isa::avx2)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx512bf16_i8_int8, Scheme::i8, Isa::avx512bf16, true)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx512bf16_mxfp4_int8, Scheme::mxfp4, Isa::avx512bf16, true)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx2_i8_int8, Scheme::i8, Isa::avx2, true)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx2_mxfp4_int8, Scheme::mxfp4, Isa::avx2, true)->Apply(shapes);
BENCHMARK_CAPTURE(run, amx_bf16, Scheme::bf16, Isa::amx)->Apply(shapes);
BENCHMARK_CAPTURE(run, amx_mxfp4, Scheme::mxfp4, Isa::amx)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx2_bf16, Scheme::bf16, Isa::avx2)->Apply(shapes);
BENCHMARK_CAPTURE(run, avx2_mxfp4, Scheme::mxfp4, Isa::avx2)->Apply(shapes);
BENCHMARK_CAPTURE(run, scalar_bf16, Scheme::bf16, Isa::scalar)
    ->Args({1, 1024, 1024, 1})
    ->Args({16, 1024, 1024, 1})
    ->ArgNames({"T", "I", "O", "threads"})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace k3::ops
