#include "k3/ops/kda/cuda/kda_decode_config.h"

#include <gtest/gtest.h>

namespace k3::ops::cuda {
namespace {

constexpr KdaDecodeConfig kRegisters{1, 8, false}, kCluster{4, 4, false}, kBulk4{1, 4, true}, kBulk8{1, 8, true};

TEST(KdaDecodeConfig, SmallBatchesSplitTheRowsOfV) {
  EXPECT_EQ(kda_decode_config(1, false, 0, 132), kCluster);
  EXPECT_EQ(kda_decode_config(12, true, 0, 132), kCluster);
  EXPECT_EQ(kda_decode_config(96, false, 0, 132), kRegisters);
  EXPECT_EQ(kda_decode_config(132, true, 0, 132), kRegisters);
}

TEST(KdaDecodeConfig, LargeBatchesStreamThroughSharedMemory) {
  EXPECT_EQ(kda_decode_config(384, true, 0, 132), kBulk8);
  EXPECT_EQ(kda_decode_config(384, false, 0, 132), kBulk8);
  EXPECT_EQ(kda_decode_config(768, false, 0, 132), kRegisters);
  EXPECT_EQ(kda_decode_config(768, true, 0, 132), kBulk4);
  EXPECT_EQ(kda_decode_config(1536, false, 0, 132), kBulk8);
  EXPECT_EQ(kda_decode_config(3072, true, 0, 132), kBulk4);
}

TEST(KdaDecodeConfig, FormsAreTakenAsAsked) {
  EXPECT_EQ(kda_decode_config(3072, false, 1, 132), kRegisters);
  EXPECT_EQ(kda_decode_config(3072, false, 2, 132), kCluster);
  EXPECT_EQ(kda_decode_config(1, false, 3, 132), kBulk4);
  EXPECT_EQ(kda_decode_config(1, false, 4, 132), kBulk8);
}

}  // namespace
}  // namespace k3::ops::cuda
