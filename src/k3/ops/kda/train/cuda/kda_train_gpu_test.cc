// Forward and vjp of kda_train against the reference in double on the same BF16 inputs.
#include <gtest/gtest.h>

#include "k3/ops/kda/train/cuda/kda_train_cuda.h"
#include "k3/ops/kda/train/cuda/kda_train_gpu_data.h"

namespace k3::ops::cuda {
namespace {

struct Tolerance {  // kda_train_cuda.h
  double y, final, d_qk, d_v, gates, parameters;
};
constexpr Tolerance kFast = {6e-3, 5e-3, 8e-3, 8e-3, 2e-2, 1e-2}, kNarrow = {6e-3, 5e-3, 1.2e-2, 8e-3, 2e-2, 1.5e-2},
                    kAlike = {1.5e-2, 2e-2, 1.5e-2, 3e-2, 2e-2, 2e-2},
                    kPlain = {3e-3, 1e-5, 3e-3, 3e-3, 3e-3, 1e-5};

double ratio(const std::vector<float>& x, const std::vector<double>& ref) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (static_cast<double>(x[i]) - ref[i]) * (static_cast<double>(x[i]) - ref[i]);
    norm += ref[i] * ref[i];
  }
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}

double sum_of_sizes(KdaTrainData<double>& ref) {  // of the terms of da_log, bounded gates: dz (z + dt_bias)
  double sum = 0;
  const auto width = static_cast<size_t>(ref.width());
  for (size_t i = 0; i < ref.dz.size(); ++i) sum += std::abs(ref.dz[i] * (ref.z[i] + ref.dt_bias[i % width]));
  return sum;
}

void check(TrainGpu& gpu, const KdaTrainCase& c, const Tolerance& most, bool b_f32 = false) {
  SCOPED_TRACE(fmt::format("{} H {} D {} K {}", c.name, c.heads, c.dim, c.taps));
  KdaTrainData<float> data(c);
  KdaTrainOnGpu device(data, b_f32);
  KdaTrainData<double> ref(c);
  for (size_t i = 0; i < 6; ++i) std::copy(data.inputs()[i].value->begin(), data.inputs()[i].value->end(), ref.inputs()[i].value->begin());
  std::copy(data.dy.begin(), data.dy.end(), ref.dy.begin());
  kda_train_forward_ref(ref.args(), ref.rows(ref.y));
  kda_train_vjp_ref(ref.args(), ref.rows(ref.dy), ref.grads());
  train_step(gpu.ctx, device);
  gpu_sync();
  ASSERT_TRUE(take_error(gpu.ctx.gpu).ok());
  device.fetch();
  EXPECT_TRUE(device.guards_intact());
  EXPECT_LE(ratio(data.y, ref.y), most.y) << "y";
  EXPECT_LE(ratio(data.dq, ref.dq), most.d_qk) << "dq";
  EXPECT_LE(ratio(data.dk, ref.dk), most.d_qk) << "dk";
  EXPECT_LE(ratio(data.dv, ref.dv), most.d_v) << "dv";
  EXPECT_LE(ratio(data.dz, ref.dz), most.gates) << "dz";
  EXPECT_LE(ratio(data.db, ref.db), most.gates) << "db";
  EXPECT_LE(ratio(data.dgate, ref.dgate), most.gates) << "dgate";
  EXPECT_LE(ratio(data.dnorm, ref.dnorm), most.gates) << "dnorm";
  EXPECT_LE(ratio(data.ddt_bias, ref.ddt_bias), most.parameters) << "ddt_bias";
  for (int part = 0; part < 3; ++part) EXPECT_LE(ratio(data.dtaps[part], ref.dtaps[part]), most.parameters) << "taps " << part;
  if (c.lower_bound) {
    for (size_t h = 0; h < data.da_log.size(); ++h) EXPECT_NEAR(static_cast<double>(data.da_log[h]), ref.da_log[h], 1e-2 * sum_of_sizes(ref));
  }
  if (!c.states) return;
  EXPECT_LE(ratio(data.final, ref.final), most.final) << "final";
  EXPECT_LE(ratio(data.d_initial, ref.d_initial), most.d_qk) << "d_initial";
}

const Tolerance& tolerance_of(const KdaTrainCase& c) { return c.key_correlation > 0.5F ? kAlike : c.dim < 128 ? kNarrow : kFast; }

TEST(KdaTrainGpu, SanitizeRaggedBlocks) {
  K3_NEEDS_GPU();
  TrainGpu gpu;
  KdaTrainCase c;
  c.heads = 2, c.dim = 32, c.lengths = {67, 0, 1};
  check(gpu, c, tolerance_of(c));
  c.heads = 1, c.dim = 128, c.lengths = {66, 3};
  check(gpu, c, tolerance_of(c));
}

TEST(KdaTrainGpu, SanitizePlain) {
  K3_NEEDS_GPU();
  TrainGpu gpu;
  KdaTrainCase c;
  c.heads = 2, c.dim = 24, c.taps = 3, c.lengths = {66, 0, 1};
  check(gpu, c, kPlain);
}

TEST(KdaTrainGpu, EveryInputSet) {
  K3_NEEDS_GPU();
  TrainGpu gpu;
  for (const KdaTrainCase& c : kda_train_input_sets(2, 128, {150, 33})) {
    if (c.lower_bound) check(gpu, c, tolerance_of(c));
  }
}

TEST(KdaTrainGpu, NarrowHeads) {
  K3_NEEDS_GPU();
  TrainGpu gpu;
  for (const int64_t dim : {32, 64}) {
    for (const KdaTrainCase& c : kda_train_input_sets(3, dim, {100})) {
      if (c.lower_bound) check(gpu, c, tolerance_of(c));
    }
  }
}

TEST(KdaTrainGpu, LengthsAndEmptySequences) {
  K3_NEEDS_GPU();
  TrainGpu gpu;
  for (const int64_t dim : {32, 128}) {
    KdaTrainCase c;
    c.dim = dim;
    c.lengths = {0, 1, 3, 0, 15, 16, 17, 63, 64, 65, 200, 128, 0};
    check(gpu, c, tolerance_of(c));
    check(gpu, c, tolerance_of(c), true);
    c.states = false;  // a forward by the kernels of inference
    check(gpu, c, tolerance_of(c));
  }
}

TEST(KdaTrainGpu, AnySize) {
  K3_NEEDS_GPU();
  TrainGpu gpu;
  for (const int64_t dim : {7, 16, 48, 100, 128}) {
    KdaTrainCase c;
    c.dim = dim, c.taps = 2 + dim % 4, c.lengths = {80, 0, 2, 20};
    if (dim % 2 == 0) c.lower_bound = std::nullopt;
    check(gpu, c, kPlain, dim == 48);
  }
  for (const KdaTrainCase& c : kda_train_input_sets(1, 32, {70})) {
    if (!c.lower_bound && c.name.find("large_state") == std::string::npos) check(gpu, c, kPlain);
  }
  const PretendPlain old;
  KdaTrainCase c;
  check(gpu, c, kPlain);
}

TEST(KdaTrainGpu, HeadsInTwoPasses) {
  K3_NEEDS_GPU();
  TrainGpu gpu;
  KdaTrainCase c;
  c.name = "passes", c.heads = 10, c.dim = 64, c.states = false;
  c.lengths.assign(1500, 3);
  ASSERT_LT(kda_train_pass_heads(c.heads, kda_train_rows(4500, 1500), c.dim), c.heads);
  check(gpu, c, kNarrow);
}

TEST(KdaTrainGpu, SameBitsFromRunToRun) {
  K3_NEEDS_GPU();
  TrainGpu gpu;
  KdaTrainCase c;
  c.lengths = {130, 64, 5};
  KdaTrainData<float> one(c), two(c);
  for (KdaTrainData<float>* data : {&one, &two}) {
    KdaTrainOnGpu device(*data);
    train_step(gpu.ctx, device);
    gpu_sync();
    device.fetch();
  }
  for (size_t i = 0; i < one.inputs().size(); ++i) EXPECT_EQ(*one.inputs()[i].gradient, *two.inputs()[i].gradient) << one.inputs()[i].name;
}

}  // namespace
}  // namespace k3::ops::cuda
