// The 8-bit codec: error bound, exactness in BF16, edges, refusals.
#include "k3/ops/int8/int8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "k3/ops/test_util.h"
#include "k3/tensor/dtype.h"

namespace k3::ops {
namespace {

struct Codes {
  std::vector<int8_t> codes;
  std::vector<uint8_t> scales;
  std::vector<float> back;
};

Codes code(const std::vector<float>& values, int64_t cols) {
  Codes c{std::vector<int8_t>(values.size()), std::vector<uint8_t>(values.size() / 32), std::vector<float>(values.size())};
  const auto rows = static_cast<int64_t>(values.size()) / cols;
  EXPECT_TRUE(int8_quantise(values.data(), rows, cols, c.codes.data(), c.scales.data()).ok());
  int8_dequantise(c.codes.data(), c.scales.data(), rows, cols, c.back.data());
  return c;
}

TEST(Int8, ErrorIsHalfAStepAndOneAtTheClamp) {
  const std::vector<float> values = random_normal(64 * 96, 3, 0.02F);
  const Codes c = code(values, 96);
  int64_t clamped = 0;
  for (size_t g = 0; g < values.size() / 32; ++g) {
    double amax = 0;
    for (size_t i = 32 * g; i < 32 * g + 32; ++i) amax = std::max(amax, static_cast<double>(std::abs(values[i])));
    const double step = std::exp2(std::floor(std::log2(amax)) - 6);
    EXPECT_EQ(static_cast<double>(int8_factor(c.scales[g])), step);
    for (size_t i = 32 * g; i < 32 * g + 32; ++i) {
      const double error = std::abs(static_cast<double>(c.back[i]) - static_cast<double>(values[i])) / step;
      const bool at_clamp = std::abs(c.codes[i]) == 127;
      clamped += at_clamp ? 1 : 0;
      EXPECT_LE(error, at_clamp ? 1.0 : 0.5) << i;
    }
  }
  EXPECT_GT(clamped, 0);  // or the case above was not seen
}

TEST(Int8, EveryWeightIsExactInBf16) {
  for (int code = -127; code <= 127; ++code) {
    for (const int scale : {0, 6, 7, 8, 127, 200, 254}) {
      const auto c = static_cast<int8_t>(code);
      const auto s = static_cast<uint8_t>(scale);
      float value = 0;
      std::vector<int8_t> codes(32, c);
      std::vector<float> out(32);
      int8_dequantise(codes.data(), &s, 1, 32, out.data());
      value = out[31];
      EXPECT_EQ(round_to_bf16(value), value);
      const double want = scale > 6 ? std::ldexp(static_cast<double>(code), scale - 133) : 0.0;
      EXPECT_EQ(static_cast<double>(value), want);
    }
  }
}

TEST(Int8, Edges) {
  std::vector<float> values(96, 0.0F);
  values[32] = 127.9F;  // clamps
  values[33] = 0.5F;    // ties to even
  values[34] = 1.5F;
  values[35] = -2.5F;
  values[64] = std::numeric_limits<float>::max();
  values[65] = std::numeric_limits<float>::denorm_min();
  const Codes c = code(values, 96);
  EXPECT_EQ(c.scales[0], 0);
  EXPECT_EQ(c.codes[32], 127);
  EXPECT_EQ(c.codes[33], 0);
  EXPECT_EQ(c.codes[34], 2);
  EXPECT_EQ(c.codes[35], -2);
  EXPECT_EQ(c.codes[64], 127);
  EXPECT_EQ(c.scales[2], 254);
  EXPECT_TRUE(std::isfinite(c.back[64]));
  const Codes tiny = code(std::vector<float>(32, std::numeric_limits<float>::denorm_min()), 32);
  EXPECT_EQ(tiny.back[0], 0);
}

TEST(Int8, QuantisingTwiceChangesNothing) {
  const Codes once = code(random_normal(32 * 64, 5, 3.0F), 64), twice = code(once.back, 64);
  EXPECT_EQ(once.back, twice.back);
}

TEST(Int8, WhatIsNotFiniteIsRefused) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> values(64, 1.0F);
    values[40] = bad;
    std::vector<int8_t> codes(64);
    std::vector<uint8_t> scales(2);
    const Status status = int8_quantise(values.data(), 2, 32, codes.data(), scales.data());
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("row 1"), std::string::npos) << status.error().message;
  }
}

}  // namespace
}  // namespace k3::ops
