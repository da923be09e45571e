// KDA training step (kernels.md 9, "backward"): forward that keeps states, and the vjp from them. Bytes: projections, z, gate and
// gradients once, kept states written and read; convolution, gates and output norm included.
#include <fmt/format.h>

#include "k3/ops/cuda/gpu_bench.h"
#include "k3/ops/cuda/roofline_gpu.h"
#include "k3/ops/kda/train/cuda/kda_train_gpu_data.h"

namespace k3::ops::cuda {
namespace {

void train_case(Bench& bench, int64_t heads, int64_t dim, int64_t sequences, int64_t length, double must, double aim, const char* note) {
  const std::string name = fmt::format("H={} D={} T={} seqs={}", heads, dim, sequences * length, sequences);
  if (!bench.wants("kda_train_forward", name) && !bench.wants("kda_train_vjp", name)) return;
  KdaTrainCase c;
  c.heads = heads, c.dim = dim, c.states = false;
  c.lengths.assign(static_cast<size_t>(sequences), length);
  KdaTrainData<float> data(c);
  const KdaTrainOnGpu device(data);
  TrainGpu gpu;
  KdaTrainSaved saved;
  ops::kda_train_forward(gpu.ctx, device.args(), device.y(), &saved);
  const double rows = static_cast<double>(sequences * length * heads * dim), kept = static_cast<double>(saved.states.size()) * 2;
  BenchLine line;
  line.name = name;
  line.note = note;
  const auto on = [&](cudaStream_t stream) {
    Ctx ctx = gpu.ctx;
    ctx.stream = stream;
    return ctx;
  };
  line.kernel = "kda_train_forward";
  line.bytes = rows * 6 * 2 + kept;
  if (bench.wants(line.kernel, name)) {
    bench.run(line, [&](cudaStream_t stream, int) {
      const Workspace::Scope scope(gpu.workspace);
      KdaTrainSaved again;
      ops::kda_train_forward(on(stream), device.args(), device.y(), &again);
    }, 2);
  }
  line.kernel = "kda_train_vjp";
  line.bytes = rows * 11 * 2 + kept;
  line.must = must, line.aim = aim;
  if (bench.wants(line.kernel, name)) {
    bench.run(line, [&](cudaStream_t stream, int) { ops::kda_train_vjp(on(stream), device.args(), saved, device.dy(), device.grads()); }, 2);
  }
}

const BenchRegistration registration("kda_train", [](Bench& bench) {
  train_case(bench, 32, 128, 1, 8192, 15, 6, "FLA without convolution, gate, norm: forward 1.034 ms, vjp 3.773");
  train_case(bench, 4, 128, 64, 1024, 15, 6, "");
  train_case(bench, 4, 128, 128, 1024, 15, 6, "");
  train_case(bench, 4, 64, 64, 1024, 0, 0, "");
  train_case(bench, 3, 32, 64, 1024, 0, 0, "");
});

}  // namespace
}  // namespace k3::ops::cuda
