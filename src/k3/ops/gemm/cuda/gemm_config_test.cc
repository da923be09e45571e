// The pure functions that choose kernels of dense products: no GPU needed.
#include "k3/ops/gemm/cuda/gemm_config.h"

#include <gtest/gtest.h>

namespace k3::ops::cuda {
namespace {

constexpr int kSms = 132;

TEST(GemmConfig, FewTokensStreamAndCodedWeightsTakeTheRowKernel) {
  EXPECT_EQ(gemm_route(1, 2304, Scheme::bf16, false), GemmRoute::stream);
  EXPECT_EQ(gemm_route(16, 2304, Scheme::bf16, true), GemmRoute::stream);
  EXPECT_EQ(gemm_route(16, 2312, Scheme::bf16, false), GemmRoute::rows);
  EXPECT_EQ(gemm_route(8192, 2304, Scheme::bf16, false), GemmRoute::library);
  EXPECT_EQ(gemm_route(8192, 2304, Scheme::bf16, true), GemmRoute::rows);
  EXPECT_EQ(gemm_route(8192, 2304, Scheme::mxfp4, false), GemmRoute::rows);
  EXPECT_EQ(gemm_route(1, 2304, Scheme::i8, false), GemmRoute::rows);
}

TEST(GemmConfig, StreamFitsSharedMemoryAndCoversItsRows) {
  for (const int64_t tokens : {1, 5, 8, 9, 16}) {
    for (const int64_t rows : {1, 7, 132, 256, 2304, 4096, 4480, 20480, 163840}) {
      for (const int64_t in : {32, 128, 1536, 2304, 7168}) {
        const StreamConfig c = stream_config(tokens, rows, in, kSms);
        EXPECT_LE(c.shared_bytes, 227 << 10);
        EXPECT_GE(c.stages, 1);
        EXPECT_LE(c.stages, kStreamMostStages);
        EXPECT_LE(c.block_rows, kGemmRowTile * c.row_tiles);
        EXPECT_LE(c.blocks, std::min<int64_t>(rows, kSms));
        if (rows <= 32 * kSms) EXPECT_LE(2 * (c.shared_bytes + 1024), 228 << 10) << "two launches side by side";
      }
    }
  }
}

TEST(GemmConfig, DeterministicSplitDependsOnNothingButK) {
  for (const int64_t in : {int64_t{8}, int64_t{2304}, int64_t{7168}}) {
    const RowsConfig first = rows_config(1, 1, in, kSms, true);
    for (const int64_t tokens : {1, 8, 9, 16, 17, 1000}) {
      for (const int64_t tiles : {1, 100, 10240}) {
        const RowsConfig c = rows_config(tokens, tiles, in, kSms, true);
        EXPECT_EQ(c.k_warps, first.k_warps);
        EXPECT_EQ(c.cluster, first.cluster);
      }
    }
  }
}

TEST(GemmConfig, EverySplitIsLaunchable) {
  for (const int64_t tokens : {1, 8, 9, 16, 17, 64}) {
    for (const int64_t tiles : {1, 2, 8, 16, 144, 256, 768, 1280, 10240}) {
      for (const int64_t in : {1, 31, 128, 1024, 2304, 4096, 7168, 33792}) {
        const RowsConfig c = rows_config(tokens, tiles, in, kSms, false);
        EXPECT_TRUE(c.token_tiles == 1 || c.token_tiles == 2 || c.token_tiles == 4);
        EXPECT_TRUE(c.k_warps >= 1 && c.k_warps <= kGemmWarps && (c.k_warps & (c.k_warps - 1)) == 0);
        EXPECT_TRUE(c.cluster >= 1 && c.cluster <= 8 && (c.cluster & (c.cluster - 1)) == 0);
        EXPECT_LE(c.cluster * c.k_warps * kGemmKStep, std::max<int64_t>(in, kGemmWarps * kGemmKStep));
      }
    }
  }
}

TEST(GemmConfig, BucketsAreTheNextPowerOfTwo) {
  EXPECT_EQ(gemm_token_bucket(1), 16);
  EXPECT_EQ(gemm_token_bucket(16), 16);
  EXPECT_EQ(gemm_token_bucket(17), 32);
  EXPECT_EQ(gemm_token_bucket(8192), 8192);
  EXPECT_EQ(gemm_token_bucket(8193), 16384);
}

}  // namespace
}  // namespace k3::ops::cuda
