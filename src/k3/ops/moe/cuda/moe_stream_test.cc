// The choice of kernels for the experts of few tokens, and the layout of packed words; no GPU.
#include <gtest/gtest.h>

#include <set>

#include "k3/ops/moe/cuda/moe_one_types.h"
#include "k3/ops/moe/cuda/moe_stream_config.h"

namespace k3::ops::cuda {
namespace {

DeviceInfo h200() {
  DeviceInfo d;
  d.sm_count = 132;
  d.capability = 90;
  d.shared_bytes_per_block = 232448;
  return d;
}

TEST(MoeStreamConfig, ServesTheShapesOfBothModels) {
  for (const MoeWeights kind : {MoeWeights::mxfp4, MoeWeights::bf16}) {
    for (const int tokens : {1, 8, 9, 16, 128, 256, 1024}) {
      const MoeStreamConfig k3 = moe_stream_config(kind, tokens, 16, 896, 3584, 3072, h200());
      EXPECT_EQ(k3.grid, 132) << tokens;
      EXPECT_EQ(k3.in_order, tokens <= 8);
      EXPECT_EQ(k3.tile, tokens <= 256 ? 8 : 16);
      EXPECT_LE(k3.shared_bytes, 232448 - 1024);
      EXPECT_EQ(moe_stream_config(kind, tokens, 8, 256, 2304, 1024, h200()).grid, 132) << tokens;
    }
  }
}

TEST(MoeStreamConfig, RefusesWhatDoesNotFit) {
  EXPECT_EQ(moe_stream_config(MoeWeights::mxfp4, 1, 2, 4, 48, 64, h200()).grid, 0);
  EXPECT_EQ(moe_stream_config(MoeWeights::bf16, 1, 2, 4, 44, 64, h200()).grid, 0);
  EXPECT_EQ(moe_stream_config(MoeWeights::mxfp4, 300, 16, 896, 16384, 64, h200()).grid, 0);
  DeviceInfo ampere = h200();
  ampere.capability = 80;
  EXPECT_EQ(moe_stream_config(MoeWeights::bf16, 1, 2, 4, 64, 64, ampere).grid, 0);
}

TEST(MoeOneConfig, ServesTheShapesOfBothModels) {
  for (const MoeWeights kind : {MoeWeights::mxfp4, MoeWeights::bf16}) {
    EXPECT_LE(moe_one_shared_bytes(kind, 8, 2304, 1024, 1024, 132, 232448), 130 << 10);  // the product before fits beside it
    EXPECT_GT(moe_one_shared_bytes(kind, 8, 2304, 1024, 1024, 132, 232448), 0);
    EXPECT_GT(moe_one_shared_bytes(kind, 2, 32, 32, 0, 132, 232448), 0);
    EXPECT_EQ(moe_one_shared_bytes(kind, 8, 2304, 1024, 4096, 132, 232448), 0);  // shared experts that the ring does not hold
  }
  EXPECT_GT(moe_one_shared_bytes(MoeWeights::mxfp4, 16, 3584, 3072, 0, 132, 232448), 0);
}

TEST(MoePack, BitsOfAWordAreAPermutation) {
  std::set<int> used;
  for (int j = 0; j < 8; ++j) {
    for (int bit = 0; bit < 4; ++bit) used.insert(mxfp4_word_bit(j, bit));
  }
  EXPECT_EQ(used.size(), 32U);
  EXPECT_EQ(*used.begin(), 0);
  EXPECT_EQ(*used.rbegin(), 31);
}

TEST(MoePack, K3ExpertTakesItsBytesAndNoMore) {
  EXPECT_EQ(moe_packed_bytes(MoeWeights::mxfp4, 2 * 3072, 3584) + moe_packed_bytes(MoeWeights::mxfp4, 3584, 3072),
            17'547'264);
  EXPECT_EQ(moe_packed_bytes(MoeWeights::bf16, 2048, 2304), 2048 * 2304 * 2);
}

}  // namespace
}  // namespace k3::ops::cuda
