#include "k3/ops/short_conv/cuda/short_conv_config.h"

#include <gtest/gtest.h>

namespace k3::ops::cuda {
namespace {

TEST(ShortConvConfig, LongPromptsTakeLongRuns) {
  EXPECT_EQ(short_conv_run(8192, 3 * 12288, 132), 32);
  EXPECT_EQ(short_conv_run(8192, 3 * 1536, 132), 16);
  EXPECT_EQ(short_conv_run(128, 3 * 1536, 132), 8);
}

}  // namespace
}  // namespace k3::ops::cuda
