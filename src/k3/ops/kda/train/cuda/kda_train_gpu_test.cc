// Forward and vjp of kda_train against the reference in double on the same BF16 inputs.
#include "k3/ops/kda/train/cuda/kda_train_checks_test.h"

namespace k3::ops::cuda {
namespace {

void check(TrainGpu& gpu, const KdaTrainCase& c, const TrainTolerance& most, bool b_f32 = false) {
  check_train(c, most, b_f32, [&](const KdaTrainOnGpu& device) {
    train_step(gpu.ctx, device);
    gpu_sync();
    return take_error(gpu.ctx.gpu).ok();
  });
}

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
  check(gpu, c, kTrainPlain);
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
    check(gpu, c, kTrainPlain, dim == 48);
  }
  for (const KdaTrainCase& c : kda_train_input_sets(1, 32, {70})) {
    if (!c.lower_bound && c.name.find("large_state") == std::string::npos) check(gpu, c, kTrainPlain);
  }
  const PretendPlain old;
  KdaTrainCase c;
  check(gpu, c, kTrainPlain);
}

TEST(KdaTrainGpu, HeadsInTwoPasses) {
  K3_NEEDS_GPU();
  TrainGpu gpu;
  KdaTrainCase c;
  c.name = "passes", c.heads = 10, c.dim = 64, c.states = false;
  c.lengths.assign(1500, 3);
  ASSERT_LT(kda_train_pass_heads(c.heads, kda_train_rows(4500, 1500), c.dim), c.heads);
  check(gpu, c, kTrainNarrow);
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
