#include "k3/ops/kda/cuda/kda_decode_config.h"

#include <gtest/gtest.h>

namespace k3::ops::cuda {
namespace {

TEST(KdaDecodeConfig, SmallBatchesSplitTheRowsOfV) {
  EXPECT_EQ(kda_decode_config(12, false, 0, 132).split, 4);
  EXPECT_EQ(kda_decode_config(96, false, 0, 132), (KdaDecodeConfig{.split = 1, .warps = 8, .bulk = false}));
  EXPECT_FALSE(kda_decode_config(132, true, 0, 132).bulk);
}

TEST(KdaDecodeConfig, LargeBatchesStreamThroughSharedMemory) {
  EXPECT_EQ(kda_decode_config(384, true, 0, 132), (KdaDecodeConfig{.split = 1, .warps = 8, .bulk = true}));
  EXPECT_EQ(kda_decode_config(3072, true, 0, 132), (KdaDecodeConfig{.split = 1, .warps = 4, .bulk = true}));
  EXPECT_EQ(kda_decode_config(3072, false, 0, 132), (KdaDecodeConfig{.split = 1, .warps = 8, .bulk = true}));
}

TEST(KdaDecodeConfig, FormsAreTakenAsAsked) {
  for (int form = 1; form <= 4; ++form) EXPECT_EQ(kda_decode_config(3072, false, form, 132).split, 1 << (form - 1));
  EXPECT_EQ(kda_decode_config(1, false, 5, 132).warps, 4);
  EXPECT_TRUE(kda_decode_config(1, false, 6, 132).bulk);
}

TEST(KdaVerifyConfig, SplitsWhereBlocksAreFew) {
  EXPECT_EQ(kda_verify_split(12, 0, 132), 4);
  EXPECT_EQ(kda_verify_split(400, 0, 132), 1);
  EXPECT_EQ(kda_verify_split(400, 2, 132), 2);
}

}  // namespace
}  // namespace k3::ops::cuda
