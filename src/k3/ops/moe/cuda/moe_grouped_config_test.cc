// The width of tiles of grouped products; no GPU.
#include <gtest/gtest.h>

#include "k3/ops/moe/cuda/moe_grouped_config.h"
#include "k3/ops/moe/cuda/moe_grouped_types.h"

namespace k3::ops::cuda {
namespace {

TEST(MoeGroupedConfig, MostExpertsHaveAsFewTilesAsTheyCan) {
  EXPECT_EQ(moe_grouped_width(MoeWeights::mxfp4, 512 * 16 / 896.0), 16);
  EXPECT_EQ(moe_grouped_width(MoeWeights::mxfp4, 2048 * 16 / 896.0), 48);
  EXPECT_EQ(moe_grouped_width(MoeWeights::mxfp4, 4096 * 16 / 896.0), 96);
  EXPECT_EQ(moe_grouped_width(MoeWeights::bf16, 8192 * 8 / 256.0), 144);  // two tiles
  EXPECT_EQ(moe_grouped_width(MoeWeights::bf16, 4096 * 16 / 448.0), 168);
}

TEST(MoeGroupedConfig, AnswersWithAWidthThatThereIs) {
  for (const MoeWeights kind : {MoeWeights::bf16, MoeWeights::mxfp4}) {
    const auto widths = moe_grouped_widths(kind);
    for (const double rows : {0.0, 0.01, 1.0, 7.5, 60.0, 128.0, 1e3, 1e4, 3e6}) {
      const int w = moe_grouped_width(kind, rows);
      EXPECT_TRUE(std::find(widths.begin(), widths.end(), w) != widths.end()) << rows;
      EXPECT_GE(w, kMoeGroupedLeastRows);
    }
    EXPECT_EQ(moe_grouped_width(kind, 0), widths.front());
  }
}

TEST(MoeGroupedConfig, TwoBoxesCoverATileOfBf16Rows) {
  for (const int w : kMoeGroupedWidthsBf16) {
    const int box = moe_grouped_box(MoeWeights::bf16, w), second = w - box;
    EXPECT_TRUE(box % 8 == 0 && second % 8 == 0 && second <= box) << w;
  }
  EXPECT_EQ(moe_grouped_box(MoeWeights::bf16, 168), 88);
}

}  // namespace
}  // namespace k3::ops::cuda
