// The choice of a kernel, without a GPU.
#include <gtest/gtest.h>

#include "k3/ops/attn_res/cuda/attn_res_cuda.h"

namespace k3::ops::cuda {
namespace {

constexpr DeviceInfo kH200{.sm_count = 132, .capability = 90, .l2_bytes = 50 << 20, .shared_bytes_per_block = 232448};

TEST(AttnResPlan, FewTokensSpreadOverTheDeviceManyFillARing) {
  for (const int64_t hidden : {8, 64, 2304, 7168, 16384}) {
    for (const int64_t tokens : {1, 8, 16, 17, 66, 67, 132, 264, 265, 8192}) {
      for (const int sources : {1, 5, 9, 10, 33}) {
        const AttnResPlan plan = attn_res_plan(tokens, hidden, sources, kH200);
        EXPECT_EQ(plan.kernel == AttnResKernel::any, sources > 9);
        EXPECT_EQ(plan.threads % 32, 0);
        EXPECT_GT(plan.threads, 0);
        if (plan.kernel == AttnResKernel::small) {
          EXPECT_LE(plan.threads, 896);
          EXPECT_GE(int64_t{8} * plan.threads * plan.cluster, hidden);
          EXPECT_EQ(plan.grid, tokens * plan.cluster);
          EXPECT_LE(plan.cluster * plan.threads / 32, 72);  // partial sums in shared memory
        } else if (plan.kernel == AttnResKernel::few) {
          EXPECT_LE(plan.threads, 256);
          EXPECT_GE(int64_t{32} * plan.threads, hidden);
        } else if (plan.kernel == AttnResKernel::large) {
          EXPECT_LE(plan.threads, 480);
          EXPECT_GE(int64_t{16} * (plan.threads - 32), hidden);
          EXPECT_LE(plan.shared_bytes + 2304, kH200.shared_bytes_per_block);
          EXPECT_GE(plan.slots, sources + 1);  // a token's rows and its delta, else it would wait for itself
        }
      }
    }
  }
  EXPECT_EQ(attn_res_plan(1, 7168, 9, kH200).cluster, 8);
  EXPECT_EQ(attn_res_plan(8, 7168, 9, kH200).cluster, 8);
  EXPECT_EQ(attn_res_plan(33, 7168, 9, kH200).cluster, 4);
  EXPECT_EQ(attn_res_plan(34, 7168, 9, kH200).kernel, AttnResKernel::large);
  EXPECT_EQ(attn_res_plan(8192, 7168, 9, kH200).kernel, AttnResKernel::large);
  EXPECT_EQ(attn_res_plan(8192, 7168, 9, kH200).slots, 16);
}

}  // namespace
}  // namespace k3::ops::cuda
