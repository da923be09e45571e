// Dense products of few tokens and of one, with what is fused to them, as for Hopper, by the checks of the tests on a GPU:
// blocks of one launch all at once, copies that land late, an x or a site's delta that the kernel before still writes.
#include "k3/ops/gemm/cuda/gemm_fused_checks_test.h"
#include "k3/ops/gemm/cuda/gemm_plain.cuh"
#include "k3/ops/gemm/cuda/gemm_plans.h"
#include "k3/ops/gemm/cuda/gemm_rows.cuh"
#include "tests/emulator/emulator.h"

namespace k3::ops::cuda {

// Not emulated.
int gemm_plain_launch(const PlainProduct&, cudaStream_t) { return 1; }
int gemm_rows_launch(const Rows&, RowsCodec, bool, int, bool, cudaStream_t) { return 1; }
CudaStatus GemmPlans::run(const GemmShape&, const void*, int64_t, const void*, void*, int64_t, Stream) const { return {1}; }
Status GemmPlans::prepare(const GemmShape&, Stream) { return {}; }

namespace {

// On a device of so few multiprocessors that rows of a test are many to them.
class GemmFewTokensEmulated : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_FALSE(HasFailure()) << emulator::failure();
    emulator::set_options({});
    pretend_device({});
  }
  static GemmHow how(uint32_t seed, int multiprocessors, uint32_t latest = 400) {
    DeviceInfo device;
    device.sm_count = multiprocessors;
    pretend_device(device);
    GemmHow out;
    out.dependent = true;
    out.release_late = seed % 2 == 0;
    out.young = [=](const std::vector<std::span<char>>& young) {
      emulator::set_options({.seed = seed,
                             .late_copies = true,
                             .latest = latest,
                             .pace_rounds = seed % 4 == 0 ? 1500U : 128U,
                             .whole_grid = true,
                             .late_blocks = true,
                             .before = young});
    };
    return out;
  }
};

TEST_F(GemmFewTokensEmulated, Sites) {
  for (const bool keep : {false, true}) {
    check_site(32, 1, true, keep, how(1, 4));
    check_site(544, 40, false, keep, how(2, 4));
    check_site(4096, 24, true, keep, how(3, 3));  // more rows than a block's ring holds
  }
}

// Groups that blocks take as they finish.
TEST_F(GemmFewTokensEmulated, Claims) {
  for (const uint32_t seed : {4, 8, 12, 13}) {
    GemmHow claiming = how(seed, 2);
    claiming.claims = true;
    check_site(2304, 90, true, true, claiming);
    check_split(2048, 300, false, claiming);  // more groups a block than there is room for their sums
    check_split_accumulates(2080, 150, claiming);
  }
}

TEST_F(GemmFewTokensEmulated, Split) {
  check_split(32, 3, false, how(5, 4));
  check_split(544, 40, false, how(6, 4));
  check_split(4096, 40, false, how(7, 3));
  check_split_accumulates(96, 5, how(8, 4));
}

// Wide rows and deterministic ones; one tile and many, and clusters.
TEST_F(GemmFewTokensEmulated, SplitStreams) {
  check_split(4640, 3, false, how(9, 8));
  check_split(32, 2, true, how(10, 8));
  check_split(544, 41, true, how(11, 2));
  check_split_accumulates(4640, 18, how(12, 8));
}

TEST_F(GemmFewTokensEmulated, Pairs) {
  check_pair({1, 32, 1, {}}, how(13, 4));
  check_pair({3, 96, 17, {GluKind::situ, 4.0F, 25.0F}}, how(14, 4));
  check_pair({8, 544, 130, {GluKind::situ, 2.0F, {}}}, how(15, 4));
  check_pair({4, 2080, 20, {}}, how(16, 16));
  check_pair({16, 544, 130, {}}, how(17, 4));
}

TEST_F(GemmFewTokensEmulated, TwoInputs) {
  check_two(1, 32, 5, how(18, 4));
  check_two(5, 128, 96, how(19, 4));
  check_two(12, 1056, 33, how(20, 8));
}

// Many schedules, copies that come very late.
TEST_F(GemmFewTokensEmulated, Schedules) {
  for (uint32_t seed = 100; seed < 116 && !HasFailure(); ++seed) {
    GemmHow h = how(seed, 2, 2000);
    check_site(1056, 20, true, seed % 2 == 0, h);
    check_split(1056, 21, seed % 2 == 0, h);
    h.claims = true;
    check_split_accumulates(2080, 90, h);
  }
}

}  // namespace
}  // namespace k3::ops::cuda
