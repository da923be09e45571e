// The optimizer's parts on a model of two million parameters (optim_cases.h), and the router's and quantisers' on its batches.
#include <benchmark/benchmark.h>

#include <cmath>

#include "k3/ops/optim/adamw/adamw.h"
#include "k3/ops/optim/fake_quant/fake_quant.h"
#include "k3/ops/optim/grad_norm/grad_norm.h"
#include "k3/ops/optim/optim_cases.h"
#include "k3/ops/optim/quantile/quantile.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

using benchmark::Counter;

// Weight, gradient and state of `count` parameters.
struct Flat {
  std::vector<float> weight, grad, first, second;
  std::vector<uint16_t> bf16;
  explicit Flat(int64_t count)
      : weight(random_normal(count, 1)), grad(random_normal(count, 2)), first(random_normal(count, 3)), second(weight.size(), 1.0F),
        bf16(weight.size()) {}
};

struct NanoMuon {
  std::vector<Flat> data;
  std::vector<MuonTensor<float>> tensors;
  double flops = 0;
  int64_t params = 0;
  NanoMuon() {
    for (const NsUnits& u : nano_units()) {
      data.emplace_back(u.count * u.stride);
      const auto r = static_cast<double>(std::min(u.rows, u.cols)), c = static_cast<double>(std::max(u.rows, u.cols));
      flops += static_cast<double>(u.count) * 5 * (4 * r * r * c + 2 * r * r * r);  // symmetric halves counted in full
      params += u.count * u.stride;
    }
    for (size_t i = 0; i < data.size(); ++i) {
      Flat& d = data[i];
      tensors.push_back({d.weight.data(), d.first.data(), d.grad.data(), d.bf16.data(), nano_units()[i], 0.01, 0.1});
    }
  }
};

constexpr int64_t kNanoAdamw = 2 * 3072 * 128 + 40000;  // embedding, head, vectors

void muon_nano(benchmark::State& state) {
  NanoMuon nano;
  TestRun run(detect_isa(), static_cast<int>(state.range(0)));
  for (auto _ : state) muon(run.ctx, nano.tensors);
  state.counters["params"] = static_cast<double>(nano.params);
  state.counters["GFLOP/s"] = Counter(nano.flops * 1e-9, Counter::kIsIterationInvariantRate);
}

void adamw_nano(benchmark::State& state) {
  Flat flat(kNanoAdamw);
  TestRun run(detect_isa(), static_cast<int>(state.range(0)));
  const AdamwTensor<float> t{flat.weight.data(), flat.first.data(), flat.second.data(), flat.grad.data(), flat.bf16.data(), kNanoAdamw, 0.01, 0.1};
  for (auto _ : state) adamw(run.ctx, {&t, 1}, {.step = 10});
  state.counters["GB/s"] = Counter(30e-9 * static_cast<double>(kNanoAdamw), Counter::kIsIterationInvariantRate);
}

// The whole step: norm, clip, both optimizers.
void step_nano(benchmark::State& state) {
  NanoMuon nano;
  Flat flat(kNanoAdamw);
  TestRun run(detect_isa(), static_cast<int>(state.range(0)));
  const AdamwTensor<float> t{flat.weight.data(), flat.first.data(), flat.second.data(), flat.grad.data(), flat.bf16.data(), kNanoAdamw, 0.01, 0.1};
  std::vector<GradTensor<float>> grads = {{flat.grad.data(), kNanoAdamw}};
  for (const Flat& d : nano.data) grads.push_back({d.grad.data(), static_cast<int64_t>(d.grad.size())});
  GradNorm<float> norm;
  for (auto _ : state) {
    grad_norm(run.ctx, grads, 1, &norm);
    adamw(run.ctx, {&t, 1}, {.step = 10}, &norm.scale);
    muon(run.ctx, nano.tensors, {}, &norm.scale);
  }
  state.counters["params"] = static_cast<double>(nano.params + kNanoAdamw);
}

void newton_schulz_units(benchmark::State& state) {
  const NsUnits u{state.range(0), state.range(1), state.range(2), state.range(1) * state.range(2)};
  std::vector<float> x = random_normal(u.count * u.stride, 1), out(x.size());
  TestRun run(detect_isa(), static_cast<int>(state.range(3)));
  for (auto _ : state) newton_schulz(run.ctx, u, x.data(), out.data());
  const auto r = static_cast<double>(std::min(u.rows, u.cols)), c = static_cast<double>(std::max(u.rows, u.cols));
  state.counters["GFLOP/s"] = Counter(static_cast<double>(u.count) * 5e-9 * (4 * r * r * c + 2 * r * r * r), Counter::kIsIterationInvariantRate);
}

void quantile(benchmark::State& state) {
  const int64_t tokens = state.range(0), experts = state.range(1), topk = state.range(2);
  std::vector<float> scores = random_normal(tokens * experts, 1), bias(static_cast<size_t>(experts));
  for (float& s : scores) s = 1 / (1 + std::exp(-s));
  std::vector<int32_t> histogram(static_cast<size_t>(experts * kQuantileBins));
  TestRun run(detect_isa(), static_cast<int>(state.range(3)));
  for (auto _ : state) {
    quantile_accumulate(run.ctx, {scores.data(), tokens, experts, 0, topk, bias.data(), nullptr}, histogram.data());
    benchmark::ClobberMemory();
  }
  state.counters["Mtoken/s"] = Counter(static_cast<double>(tokens) * 1e-6, Counter::kIsIterationInvariantRate);
}

template <void (*kFn)(const Ctx&, const Tensor&, const Tensor&)>
void fake_quant(benchmark::State& state) {
  std::vector<float> in = random_normal(1 << 20, 1, 0.02F), out(in.size());
  TestRun run(detect_isa(), static_cast<int>(state.range(0)));
  for (auto _ : state) {
    kFn(run.ctx, matrix(in.data(), 4096, 256), matrix(out.data(), 4096, 256));
    benchmark::ClobberMemory();
  }
  state.counters["Gvalue/s"] = Counter(static_cast<double>(in.size()) * 1e-9, Counter::kIsIterationInvariantRate);
}

BENCHMARK(muon_nano)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(adamw_nano)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(step_nano)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(newton_schulz_units)
    ->ArgNames({"count", "rows", "cols", "threads"})
    ->Args({96, 32, 128, 1})
    ->Args({336, 32, 64, 1})
    ->Args({8, 128, 128, 1})
    ->Args({4, 128, 384, 1})
    ->Args({1, 384, 1536, 2})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(quantile)
    ->ArgNames({"tokens", "experts", "topk", "threads"})
    ->Args({4096, 16, 4, 1})
    ->Args({4096, 32, 4, 1})
    ->Args({2048, 896, 16, 2})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(fake_quant, mxfp4_fake_quant)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(fake_quant, mxfp8_fake_quant)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace k3::ops
