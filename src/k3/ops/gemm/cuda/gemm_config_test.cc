// The pure functions that choose kernels of dense products: no GPU needed.
#include "k3/ops/gemm/cuda/gemm_config.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace k3::ops::cuda {
namespace {

constexpr int kSms = 132;

TEST(GemmConfig, RoutesByTokensRowsAndWeights) {
  EXPECT_EQ(gemm_route(1, 163840, 2304, Scheme::bf16, false), GemmRoute::stream);
  EXPECT_EQ(gemm_route(16, 4096, 2304, Scheme::bf16, true), GemmRoute::stream);
  EXPECT_EQ(gemm_route(16, 4096, 2312, Scheme::bf16, false), GemmRoute::rows);
  EXPECT_EQ(gemm_route(17, 256, 2304, Scheme::bf16, false), GemmRoute::stream);
  EXPECT_EQ(gemm_route(32, 1536, 7168, Scheme::bf16, false), GemmRoute::stream);
  EXPECT_EQ(gemm_route(17, 2304, 4096, Scheme::bf16, false), GemmRoute::library);
  EXPECT_EQ(gemm_route(33, 256, 2304, Scheme::bf16, false), GemmRoute::library);
  EXPECT_EQ(gemm_route(8192, 4096, 2304, Scheme::bf16, false), GemmRoute::library);
  EXPECT_EQ(gemm_route(8192, 4096, 2304, Scheme::bf16, true), GemmRoute::stream);
  EXPECT_EQ(gemm_route(8192, 4096, 2304, Scheme::mxfp4, false), GemmRoute::rows);
  EXPECT_EQ(gemm_route(1, 4096, 2304, Scheme::i8, false), GemmRoute::rows);
}

TEST(GemmConfig, DeterministicSplitDependsOnNothingButK) {
  for (const int64_t in : {8, 128, 2304, 7168}) {
    const RowsConfig first = rows_config(1, 1, in, kSms, true, 4);
    EXPECT_EQ(first.cluster, 1);
    for (const int64_t tokens : {1, 8, 9, 16, 17, 1000}) {
      for (const int64_t rows : {1, 100, 163840}) {
        const RowsConfig c = rows_config(tokens, rows, in, kSms, true, 4);
        EXPECT_EQ(c.k_warps, first.k_warps);
        EXPECT_EQ(c.cluster, first.cluster);
      }
    }
  }
}

TEST(GemmConfig, EverySplitIsLaunchableAndTilesHoldTheirRows) {
  for (const bool deterministic : {false, true}) {
    for (const int64_t tokens : {1, 8, 9, 16, 17, 64}) {
      for (const int64_t rows : {1, 7, 128, 256, 2304, 4096, 4480, 12288, 20480, 163840}) {
        for (const int64_t in : {1, 31, 128, 1024, 2304, 4096, 7168, 33792}) {
          const RowsConfig c = rows_config(tokens, rows, in, kSms, deterministic, 4);
          EXPECT_TRUE(c.row_tiles == 1 || c.row_tiles == 2 || c.row_tiles == 4);
          EXPECT_TRUE(c.token_tiles == 1 || c.token_tiles == 2 || c.token_tiles == 4);
          EXPECT_TRUE(c.k_warps >= 1 && c.k_warps <= kGemmWarps && (c.k_warps & (c.k_warps - 1)) == 0);
          EXPECT_TRUE(c.cluster >= 1 && c.cluster <= 8 && (c.cluster & (c.cluster - 1)) == 0);
          EXPECT_LE(c.cluster * c.k_warps * kGemmKStep, std::max<int64_t>(in, kGemmKStep));
          EXPECT_GE(c.tiles * c.row_tiles * kGemmRowTile, rows);
          EXPECT_LE(c.tiles, rows);
          EXPECT_TRUE(c.row_tiles < 4 || c.token_tiles > 1);  // the stream kernel has no other
          EXPECT_EQ(rows_config(tokens, rows, in, kSms, deterministic, 1).row_tiles, 1);
        }
      }
    }
  }
  EXPECT_EQ(rows_config(1, 2304, 4096, kSms, false, 4).tiles, kSms);
  EXPECT_EQ(rows_config(1, 2304, 4096, kSms, false, 1).tiles, 2 * kSms);  // not 144, of which 12 would be a second wave
}

TEST(GemmConfig, OneTokenFitsBesideItsNeighbours) {
  for (const int64_t rows : {2, 64, 576, 2304, 4096, 6720, 7168, 12576, 18432}) {
    for (const int64_t in : {32, 128, 768, 1536, 2304, 2560, 3584, 4096, 4608}) {
      for (const int grain : {1, 2}) {
        const OneConfig c = one_config(rows, in, grain, kSms);
        SCOPED_TRACE(testing::Message() << rows << " x " << in << ", grain " << grain);
        EXPECT_EQ(c.tiles > 0, rows <= 4096 || (in >= 2048 && in < 2560));
        if (c.tiles == 0) continue;
        EXPECT_LE(c.tiles, kSms);
        EXPECT_LE(c.height, 8);  // rows of a fragment
        EXPECT_EQ(c.height % grain, 0);
        EXPECT_LE(c.groups, 12);
        EXPECT_EQ(c.pitch % 128, 64);
        EXPECT_LE(c.ring_bytes(), c.claims ? kOneManyBytes : kOneFewBytes);
      }
    }
  }
  // A second row of x takes no more room than there was, and leaves two groups of rows under way.
  for (const int64_t rows : {2, 64, 576, 2304, 4096}) {
    for (const int64_t in : {32, 128, 768, 2304, 2560, 3584, 4096, 4608}) {
      for (const int grain : {1, 2}) {
        const OneConfig c = one_config(rows, in, grain, kSms), split = one_config(rows, in, grain, kSms, true);
        SCOPED_TRACE(testing::Message() << rows << " x " << in << ", grain " << grain);
        EXPECT_EQ(split.tiles, c.tiles);
        EXPECT_EQ(split.height % grain, 0);
        EXPECT_LE(split.ring_bytes() + 2 * in, kOneFewBytes);
        EXPECT_TRUE(split.groups >= 2 || split.height * split.tiles >= rows);
      }
    }
  }
  EXPECT_EQ(one_config(2304, 4096, 1, kSms, true).height, 6);  // o of Kimi-Linear-48B: two groups of 7 rows without
  EXPECT_EQ(one_config(12576, 2304, 1, kSms, true), one_config(12576, 2304, 1, kSms));
  EXPECT_EQ(one_config(12576, 2304, 1, kSms).groups, 3);  // q, k, v and more of Kimi-Linear-48B
  EXPECT_EQ(one_config(2304, 7168, 1, kSms).tiles, 0);    // a group of rows is too long
  EXPECT_EQ(one_config(163840, 2304, 1, kSms).tiles, 0);  // lm_head
}

TEST(GemmConfig, BucketsAreTheNextPowerOfTwo) {
  EXPECT_EQ(gemm_token_bucket(1), 16);
  EXPECT_EQ(gemm_token_bucket(16), 16);
  EXPECT_EQ(gemm_token_bucket(17), 32);
  EXPECT_EQ(gemm_token_bucket(8192), 8192);
  EXPECT_EQ(gemm_token_bucket(8193), 16384);
}

TEST(GemmConfig, SeveralProductsOfFewTokensAreOneLaunch) {
  EXPECT_TRUE(gemm_wide_wins(32, 12288, 3, 2304));
  EXPECT_FALSE(gemm_wide_wins(64, 12288, 3, 2304));
  EXPECT_TRUE(gemm_wide_wins(64, 4608, 3, 7168));
  EXPECT_FALSE(gemm_wide_wins(128, 4608, 3, 7168));
  EXPECT_TRUE(gemm_wide_wins(128, 1536, 2, 7168));
  EXPECT_FALSE(gemm_wide_wins(129, 1536, 2, 7168));
  EXPECT_FALSE(gemm_wide_wins(32, 4096, 1, 2304));
  EXPECT_FALSE(gemm_wide_wins(32, 4096, 2, 2336));
}

TEST(GemmConfig, WideTilesHoldTheirRows) {
  for (const int64_t rows : {1, 127, 128, 129, 1536, 4096, 12288, 163840}) {
    for (const int64_t in : {64, 1024, 2304, 7168}) {
      const RowsConfig c = wide_config(rows, in, kSms);
      EXPECT_GE(c.tiles * kWideRows, rows);
      EXPECT_LE(c.tiles, rows);
      EXPECT_TRUE(c.cluster == 1 || in / kWideColumns >= 4 * c.cluster);
    }
  }
}

}  // namespace
}  // namespace k3::ops::cuda
