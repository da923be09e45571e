// The choice of a plan, without a GPU.
#include "k3/ops/rms_norm/cuda/rms_norm_cuda.h"

#include <gtest/gtest.h>

namespace k3::ops::cuda {
namespace {

TEST(RmsNormPlan, EveryRowFitsItsThreads) {
  const DeviceInfo h200{.sm_count = 132, .capability = 90, .l2_bytes = 50 << 20, .shared_bytes_per_block = 232448};
  for (const int64_t tokens : {1, 132, 264, 265, 529, 100000}) {
    for (const int64_t width : {8, 64, 256, 264, 512, 2304, 3584, 7168, 65536}) {
      const RmsNormPlan plan = rms_norm_plan(tokens, width, h200);
      EXPECT_GE(int64_t{8} * plan.vectors * plan.threads, width);
      EXPECT_LE(plan.threads, 1024);
      EXPECT_EQ(plan.threads % 32, 0);
      EXPECT_GE(plan.grid * plan.rows, tokens);
      EXPECT_TRUE(plan.rows == 1 || plan.threads == 32) << "rows that share a block do not wait for each other";
    }
  }
  EXPECT_EQ(rms_norm_plan(1, 7168, h200).threads, 896);
  EXPECT_EQ(rms_norm_plan(8192, 7168, h200).threads, 224);
  EXPECT_EQ(rms_norm_plan(8192, 512, h200).rows, 4);
}

}  // namespace
}  // namespace k3::ops::cuda
