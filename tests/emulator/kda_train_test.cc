// Training of delta attention, as for Hopper, by the checks of the tests on a GPU: its passes as the dispatch makes them,
// warps in random order, copies that land late, scratch that nothing is in.
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/kda/train/cuda/kda_train_checks_test.h"
#include "k3/ops/kda/train/cuda/kda_train_plain.h"
#include "k3/ops/rms_norm/cuda/gated_norm_cuda.h"
#include "k3/ops/short_conv/cuda/short_conv_cuda.h"
#include "tests/emulator/emulator.h"

namespace k3::ops::cuda {

// Not emulated.
int kda_train_plain_launch(const KdaTrainCudaArgs&, const KdaTrainPlainSizes&, int, CUstream_st*) { return 1; }
int gated_norm_launch(const GatedNorm&, void*) { return 1; }
CudaStatus short_conv_cuda(const ShortConvArgs&, Stream) { return {1}; }
struct GemmPlans::Impl {};
GemmPlans::~GemmPlans() = default;
OpState::OpState() = default;
void OpState::trace(const char*) {}
void OpState::mark(const char*) {}

namespace {

constexpr int64_t kScratch = int64_t{8} << 20;
constexpr int kMany = 1000, kNone = 0;  // multiprocessors: as many blocks a chain of the scan as there can be, and one

class KdaTrainEmulated : public testing::Test {
 protected:
  void TearDown() override {
    emulator::set_options({});
    pretend_device({});
  }

  bool in_place = false;  // dz, db and dgate lie on their inputs

  void check(const KdaTrainCase& c, int multiprocessors, uint32_t seed, bool b_f32 = false, uint32_t latest = 400) {
    SCOPED_TRACE(fmt::format("{} multiprocessors, seed {}", multiprocessors, seed));
    DeviceInfo device;
    device.sm_count = multiprocessors, device.capability = 90;
    pretend_device(device);
    emulator::set_options({.seed = seed, .late_copies = true, .latest = latest});
    check_train(c, tolerance_of(c), b_f32, [this](const KdaTrainOnGpu& data) { return run(data); });
  }

 private:
  bool run(const KdaTrainOnGpu& data) const {
    OpState state;
    Workspace workspace;
    if (!workspace.reserve(kScratch).ok()) return false;
    {
      const Workspace::Scope scope(workspace);
      std::memset(workspace.bytes(kScratch - 64), 0xFF, kScratch - 64);
    }
    Ctx ctx;
    ctx.gpu = &state, ctx.workspace = &workspace;
    KdaTrainSaved saved;
    cuda::kda_train_forward(ctx, data.args(), data.y(), &saved);
    KdaTrainGrads grads = data.grads();
    if (in_place) grads.dz = data.row_tensor(3), grads.dgate = data.row_tensor(4), grads.db = data.args().b;
    cuda::kda_train_vjp(ctx, data.args(), saved, data.dy(), grads);
    if (in_place) {
      data.rows[10].set(data.rows[3].get()), data.rows[11].set(data.rows[4].get());
      data.db.set(data.b.get()), data.db_numbers.set(data.b_numbers.get());
    }
    EXPECT_LE(workspace.peak_bytes(), kScratch);
    const Status status = state.take_error();
    EXPECT_TRUE(status.ok()) << status.error().message;
    return status.ok();
  }
};

KdaTrainCase shape(int64_t heads, int64_t dim, std::vector<int64_t> lengths) {
  KdaTrainCase c;
  c.heads = heads, c.dim = dim, c.lengths = std::move(lengths);
  return c;
}

TEST_F(KdaTrainEmulated, Heads128) {
  for (const int multiprocessors : {kNone, kMany}) {
    check(shape(1, 128, {130}), multiprocessors, 1);
    check(shape(2, 128, {1, 0, 65}), multiprocessors, 2, true);
    check(shape(1, 128, {16, 64, 0}), multiprocessors, 3);
  }
}

TEST_F(KdaTrainEmulated, NarrowHeads) {
  for (const int multiprocessors : {kNone, kMany}) {
    for (const int64_t dim : {32, 64}) {
      check(shape(1, dim, {130, 16}), multiprocessors, 4);
      check(shape(3, dim, {1, 0, 65}), multiprocessors, 5, true);
    }
  }
}

TEST_F(KdaTrainEmulated, LengthsAndEmptySequences) {
  for (const int64_t dim : {32, 64, 128})
    check(shape(1, dim, {0, 1, 3, 0, 15, 16, 17, 63, 64, 65, 200, 128, 0}), dim == 64 ? kMany : kNone, 6);
}

TEST_F(KdaTrainEmulated, InPlace) {
  in_place = true;
  for (const int64_t dim : {32, 64, 128}) check(shape(2, dim, {70, 5}), kMany, 7, dim == 64);
}

TEST_F(KdaTrainEmulated, EveryInputSet) {
  uint32_t seed = 10;
  for (const int64_t dim : {32, 64, 128}) {
    for (const KdaTrainCase& c : kda_train_input_sets(1, dim, {66, 17})) {
      const bool emulated = c.states || dim < 128;  // else a forward by the kernels of inference
      if (c.lower_bound && emulated) check(c, seed % 2 == 0 ? kNone : kMany, seed);
      ++seed;
    }
  }
}

// Many schedules, copies that come very late.
TEST_F(KdaTrainEmulated, Schedules) {
  for (uint32_t seed = 100; seed < 106 && !HasFailure(); ++seed) {
    const int multiprocessors = seed % 2 == 0 ? kNone : kMany;
    check(shape(1, 128, {82}), multiprocessors, seed, false, 5000);
    check(shape(1, 64, {150}), multiprocessors, seed, false, 5000);
    check(shape(1, 32, {150}), multiprocessors, seed, false, 5000);
  }
}

}  // namespace
}  // namespace k3::ops::cuda
