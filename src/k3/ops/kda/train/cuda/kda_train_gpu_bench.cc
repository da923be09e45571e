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
  c.heads = heads, c.dim = dim, c.states = false, c.lengths = {1};
  KdaTrainData<float> data(c);  // parameters; the rest is filled on the device
  const KdaTrainOnGpu device(data);
  const int64_t tokens = sequences * length, width = heads * dim;
  std::vector<DeviceArray<uint16_t>> arrays;
  for (uint64_t i = 0; i < 14; ++i) {
    arrays.emplace_back(tokens * (i < 12 ? width : heads));
    gpu_check(fill_normal_bf16(arrays.back().data(), arrays.back().size(), i + 1, 1.0F, nullptr).code, "fill");
  }
  std::vector<int64_t> offsets;
  for (int64_t s = 0; s <= sequences; ++s) offsets.push_back(s * length);
  const DeviceArray<int32_t> offsets_d(std::vector<int32_t>(offsets.begin(), offsets.end()));
  const auto view = [&](size_t i) { return Tensor(arrays[i].data(), DType::bf16, {tokens, i < 12 ? width : heads}); };
  KdaTrainArgs args = device.args();
  args.q_in = view(0), args.k_in = view(1), args.v_in = view(2), args.z = view(3), args.gate = view(4), args.b = view(12);
  args.offsets = offsets, args.device_offsets = offsets_d.data();
  KdaTrainGrads grads = device.grads();
  grads.dq_in = view(7), grads.dk_in = view(8), grads.dv_in = view(9), grads.dz = view(10), grads.dgate = view(11), grads.db = view(13);
  TrainGpu gpu;
  KdaTrainSaved saved;
  ops::kda_train_forward(gpu.ctx, args, view(6), &saved);
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
      ops::kda_train_forward(on(stream), args, view(6), &again);
    }, 2);
  }
  line.kernel = "kda_train_vjp";
  line.bytes = rows * 11 * 2 + kept;
  line.must = must, line.aim = aim;
  if (bench.wants(line.kernel, name)) {
    bench.run(line, [&](cudaStream_t stream, int) { ops::kda_train_vjp(on(stream), args, saved, view(5), grads); }, 2);
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
