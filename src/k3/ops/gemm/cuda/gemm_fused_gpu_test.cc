// What the kernels of few tokens do besides: a gate and an up matrix with the activation behind them, two inputs in one launch, an x of
// two rows, a site in front.
#include "k3/ops/gemm/cuda/gemm_fused_checks_test.h"

namespace k3::ops::cuda {
namespace {

TEST(GemmFusedGpu, SanitizeSplit) {
  K3_NEEDS_GPU();
  check_split(32, 3);
  check_split(544, 40);
  check_split(2304, 7000);
  check_split_accumulates(96, 5);
}

// What the kernel of one token does not serve goes to the stream kernel: wide rows, deterministic; one tile and many, and clusters.
TEST(GemmFusedGpu, SanitizeSplitStreams) {
  K3_NEEDS_GPU();
  check_split(4640, 3);
  check_split(32, 2, true);
  check_split(544, 41, true);
  check_split_accumulates(4640, 18);
}

TEST(GemmFusedGpu, SplitStreamsOfAllShapes) {
  K3_NEEDS_GPU();
  for (const int64_t rows : {33, 896, 4608}) check_split(7168, rows);
  check_split(12288, 7168);
  for (const int64_t rows : {40, 2500, 9000}) check_split(2304, rows, true);
}

TEST(GemmFusedGpu, WhatTakesASplitInput) {
  K3_NEEDS_GPU();
  const GemmMatrix w(16, 64, 1);
  const DeviceArray<uint16_t> x(2 * 64), y(2 * 16);
  GemmArgs args{.x = x.data(), .tokens = 1, .in = 64, .x_stride = 64, .part_count = 1};
  args.parts[0] = {.w = w.device(), .y = y.data(), .y_stride = 16};
  args.x_rest = x.data() + 64;
  EXPECT_TRUE(gemm_takes_split(args));
  args.x_rest = x.data() + 1;  // unaligned
  EXPECT_FALSE(gemm_takes_split(args));
  args.x_rest = nullptr, args.tokens = 2;
  EXPECT_FALSE(gemm_takes_split(args));
  args.tokens = 1, args.other_x = x.data();
  EXPECT_FALSE(gemm_takes_split(args));
  args.other_x = nullptr, args.parts[0].w.scheme = Scheme::mxfp4;
  EXPECT_FALSE(gemm_takes_split(args));
}

TEST(GemmFusedGpu, SanitizeSite) {
  K3_NEEDS_GPU();
  for (const bool keep : {false, true}) {
    check_site(32, 1, true, keep);
    check_site(544, 40, false, keep);
  }
}

TEST(GemmFusedGpu, SitesOfAllShapes) {
  K3_NEEDS_GPU();
  for (const bool keep : {false, true}) {
    check_site(2304, 1024, true, keep);
    check_site(2304, 7000, true, keep);
    check_site(4096, 1500, false, keep);
  }
}

TEST(GemmFusedGpu, SanitizePairs) {
  K3_NEEDS_GPU();
  check_pair({1, 32, 1, {}});
  check_pair({3, 96, 17, {GluKind::situ, 4.0F, 25.0F}});
  check_two(1, 32, 5);
}

TEST(GemmFusedGpu, PairsOfAllShapes) {
  K3_NEEDS_GPU();
  for (const Glu& glu : {Glu{}, Glu{GluKind::situ, 4.0F, 25.0F}, Glu{GluKind::situ, 2.0F, {}}}) {
    check_pair({1, 2304, 1024, glu});
    check_pair({4, 7168, 96, glu});
    check_pair({8, 544, 130, glu});
    check_pair({9, 1056, 333, glu});
    check_pair({16, 2304, 2500, glu});
  }
}

TEST(GemmFusedGpu, TwoInputs) {
  K3_NEEDS_GPU();
  check_two(1, 128, 4096);
  check_two(5, 128, 1536);
  check_two(8, 1024, 70);
  check_two(12, 128, 4096);
  check_two(16, 2304, 33);
}

}  // namespace
}  // namespace k3::ops::cuda
