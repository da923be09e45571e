// The optimizer of a model of 36 million parameters (nine layers of width 384, 32 experts of 192 x 192) and the router's and quantisers'
// part of its step of 131,072 tokens.
#include <algorithm>
#include <cmath>

#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/optim/adamw/adamw.h"
#include "k3/ops/optim/cuda/optim_gpu_test_util.h"
#include "k3/ops/optim/fake_quant/fake_quant.h"
#include "k3/ops/optim/grad_norm/grad_norm.h"
#include "k3/ops/optim/muon/muon.h"
#include "k3/ops/optim/optim_cases.h"
#include "k3/ops/optim/quantile/quantile.h"

namespace k3::ops::cuda {
namespace {

std::vector<NsUnits> mini_units() {
  std::vector<NsUnits> units;
  const auto add = [&](int64_t tensors, int64_t count, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < tensors; ++i) units.push_back({count, rows, cols, rows * cols});
  };
  add(6 * 4, 4, 128, 384);    // q, k, v, g
  add(6, 1, 128, 384);        // decay
  add(6, 4, 128, 128);
  add(9, 1, 384, 512);        // o
  add(3, 1, 192, 384);        // MLA
  add(3, 4, 192, 192);
  add(3, 1, 576, 384);
  add(3, 8, 128, 512);
  add(3, 4, 128, 384);
  add(2, 1, 1536, 384);       // dense
  add(1, 1, 384, 1536);
  add(8, 1, 192, 384);        // latent
  add(8, 1, 384, 192);
  add(16, 1, 384, 384);       // shared
  add(8, 1, 384, 384);
  add(8, 1, 32, 384);         // router
  add(24, 32, 192, 192);      // experts
  return units;
}

BenchLine line(const char* kernel, const std::string& name, double bytes, double flops = 0, const char* note = "") {
  return {.kernel = kernel, .name = name, .bytes = bytes, .flops = flops, .note = note};
}

struct Flat {
  DeviceArray<float> weight, first, second, grad;
  DeviceArray<uint16_t> bf16;
  explicit Flat(int64_t count) : weight(count), first(count), second(count), grad(random_normal(count, 1)), bf16(count) {
    weight.zero(), first.zero(), second.zero();
  }
};

template <class Fn>
auto on(GpuRun& run, Fn fn) {
  return [&run, fn](cudaStream_t stream, int) {
    run.ctx.stream = stream;
    fn();
  };
}

// All units of a model, and `rest` numbers for AdamW.
void optimizers(Bench& bench, const std::string& name, const std::vector<NsUnits>& units, int64_t rest) {
  GpuRun run;
  std::vector<Flat> data;
  std::vector<MuonTensor<float>> muons;
  std::vector<GradTensor<float>> grads;
  double numbers = 0, flops = 0;
  for (const NsUnits& u : units) {
    data.emplace_back(u.count * u.stride);
    const Flat& d = data.back();
    muons.push_back({d.weight.data(), d.first.data(), d.grad.data(), d.bf16.data(), u, 0.01, 0.1});
    grads.push_back({d.grad.data(), d.grad.size()});
    const auto r = static_cast<double>(std::min(u.rows, u.cols)), c = static_cast<double>(std::max(u.rows, u.cols));
    numbers += static_cast<double>(u.count) * r * c;
    flops += static_cast<double>(u.count) * 5 * (4 * r * r * c + 2 * r * r * r);
  }
  const Flat flat(rest);
  const AdamwTensor<float> adam{flat.weight.data(), flat.first.data(), flat.second.data(), flat.grad.data(), flat.bf16.data(), rest, 0.01, 0.1};
  grads.push_back({flat.grad.data(), rest});
  const DeviceArray<GradNorm<float>> norm(1);
  bench.run(line("muon", name, numbers * 18, flops, "momentum, 5 Newton-Schulz steps, update"), on(run, [&] { muon(run.ctx, muons, {}, nullptr); }), 1);
  bench.run(line("adamw", name, static_cast<double>(rest) * 30), on(run, [&] { adamw(run.ctx, {&adam, 1}, {.step = 5}, nullptr); }));
  bench.run(line("grad_norm", name, (numbers + static_cast<double>(rest)) * 4), on(run, [&] { grad_norm(run.ctx, grads, 1, norm.data()); }));
  run.finish();
}

void quantiles(Bench& bench, int64_t tokens, int64_t experts, int64_t topk) {
  GpuRun run;
  std::vector<float> scores = random_normal(tokens * experts, 1);
  for (float& s : scores) s = 1 / (1 + std::exp(-s));
  const DeviceArray<float> d_scores(scores), bias(std::vector<float>(static_cast<size_t>(experts)));
  const DeviceArray<int32_t> histogram(experts * kQuantileBins);
  histogram.zero();
  const std::string name = fmt::format("{} tokens, {} of {}", tokens, topk, experts);
  bench.run(line("quantile_accumulate", name, static_cast<double>(tokens * experts) * 4), [&](cudaStream_t stream, int) {
    run.ctx.stream = stream;
    quantile_accumulate(run.ctx, {d_scores.data(), tokens, experts, experts, topk, bias.data(), nullptr}, histogram.data());
  });
  bench.run(line("quantile_update", name, static_cast<double>(experts * kQuantileBins) * 8), [&](cudaStream_t stream, int) {
    run.ctx.stream = stream;
    quantile_update(run.ctx, experts, topk, 1, histogram.data(), bias.data());
  });
  run.finish();
}

void quantisers(Bench& bench) {
  GpuRun run;
  const int64_t rows = 131072, cols = 192;
  const DeviceArray<float> master(random_normal(rows * cols, 1));
  const DeviceArray<uint16_t> wide(rows * cols), narrow(rows * cols);
  narrow.zero();
  const Tensor f32(master.data(), DType::f32, {rows, cols}), out(wide.data(), DType::bf16, {rows, cols}), in(narrow.data(), DType::bf16, {rows, cols});
  const auto count = static_cast<double>(rows * cols);
  bench.run(line("mxfp4_fake_quant", "f32 to bf16", count * 6), [&](cudaStream_t stream, int) {
    run.ctx.stream = stream;
    mxfp4_fake_quant(run.ctx, f32, out);
  });
  bench.run(line("mxfp8_fake_quant", "bf16", count * 4), [&](cudaStream_t stream, int) {
    run.ctx.stream = stream;
    mxfp8_fake_quant(run.ctx, in, out);
  });
  run.finish();
}

const BenchRegistration registration("optim", [](Bench& bench) {
  if (bench.wants("muon adamw grad_norm", "36M model")) optimizers(bench, "36M model", mini_units(), 2 * 12288 * 384);
  if (bench.wants("muon adamw grad_norm", "2M model")) optimizers(bench, "2M model", nano_units(), 2 * 3072 * 128);
  if (bench.wants("quantile_accumulate quantile_update", "tokens")) {
    quantiles(bench, 131072, 32, 4);
    quantiles(bench, 16384, 896, 16);
  }
  if (bench.wants("mxfp4_fake_quant mxfp8_fake_quant", "f32 bf16")) quantisers(bench);
});

}  // namespace
}  // namespace k3::ops::cuda
