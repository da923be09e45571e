// MXFP4 codec: all bytes and scales bit for bit; the quantiser against brute force, ties, limits.
#include "k3/ops/mxfp4/mxfp4.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

TEST(Mxfp4, DequantisesEveryByteWithEveryScaleBitExactly) {
  // 16 groups hold all 256 bytes; 253 rows, one a scale byte.
  std::vector<uint8_t> packed(256 * 253), scales(16 * 253);
  for (size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<uint8_t>(i);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(i / 16);
  std::vector<float> want(512 * 253);
  mxfp4_dequantise_ref(packed.data(), scales.data(), 253, 512, want.data());
  EXPECT_EQ(std::bit_cast<uint32_t>(want[2]), std::bit_cast<uint32_t>(0x1p-128F));  // byte 1, scale 0: 0.5 * 2^-127
  for (const Isa isa : test_isas()) {
    Guarded out(512 * 253);
    mxfp4_dequantise(isa, packed.data(), scales.data(), 253, 512, out.data());
    EXPECT_TRUE(out.intact());
    EXPECT_EQ(0, compare_bytes(out.data(), want.data(), want.size() * sizeof(float))) << isa_name(isa);
  }
}

TEST(Mxfp4, NothingToDequantise) {
  float out = 3;
  mxfp4_dequantise(detect_isa(), nullptr, nullptr, 0, 32, &out);
  EXPECT_EQ(out, 3);
}

struct Packed {
  std::vector<uint8_t> packed, scales;
  bool operator==(const Packed&) const = default;
};

Packed quantise(const std::vector<float>& v, bool reference = false) {
  Packed p{std::vector<uint8_t>(v.size() / 2, 0xEE), std::vector<uint8_t>(v.size() / 32, 0xEE)};
  const auto fn = reference ? mxfp4_quantise_ref : mxfp4_quantise;
  fn(v.data(), 1, static_cast<int64_t>(v.size()), p.packed.data(), p.scales.data()).value();
  return p;
}

TEST(Mxfp4, QuantisesRandomValuesLikeBruteForce) {
  std::vector<float> v;
  const Rng rng(5, 1);
  for (uint64_t g = 0; g < 4000; ++g) {
    const float scale = std::ldexp(1.0F, static_cast<int>(rng.bits(g) % 270) - 148);
    for (uint64_t i = 0; i < 32; ++i) {
      const auto normal = static_cast<float>(rng.normal(1000000 + g * 32 + i));
      const float x = normal * scale;
      v.push_back(std::isfinite(x) && std::abs(x) < 2e38F ? x : 0.0F);
    }
  }
  EXPECT_EQ(quantise(v), quantise(v, true));
}

TEST(Mxfp4, QuantisesRandomBitPatternsLikeBruteForce) {
  std::vector<float> v;
  const Rng rng(6, 1);
  for (uint64_t i = 0; v.size() < 32 * 4000; ++i) {
    const auto x = std::bit_cast<float>(rng.bits(i));
    if (std::isfinite(x) && std::abs(x) < 2.5e38F) v.push_back(x);
  }
  EXPECT_EQ(quantise(v), quantise(v, true));
}

// Just at, below and above 6 * 2^e the exponent must step, where a logarithm in FP32 fails.
TEST(Mxfp4, ScaleStepsExactlyAboveSixTimesAPowerOfTwo) {
  for (int e = -127; e <= 125; ++e) {
    const float edge = std::ldexp(6.0F, e);
    for (const int step : {-1, 0, 1}) {
      std::vector<float> v(32, 0.0F);
      v[7] = std::bit_cast<float>(std::bit_cast<uint32_t>(edge) + static_cast<uint32_t>(step));
      const int want = e + 127 + (step > 0 ? 1 : 0);
      if (want > 252) continue;
      const Packed p = quantise(v);
      EXPECT_EQ(p.scales[0], want) << e << " " << step;
      EXPECT_EQ(p.packed[3], (step > 0 ? 5 : 7) << 4) << e << " " << step;  // 6, or half of it above the edge
      EXPECT_EQ(p, quantise(v, true));
    }
  }
}

// At every cut the lower magnitude wins; one step above it the higher; both signs; also where cuts are subnormal.
TEST(Mxfp4, TiesGoToTheLowerMagnitude) {
  const float cuts[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  for (const int e : {-127, -126, -125, -20, 0, 3, 125}) {
    for (size_t c = 0; c < 7; ++c) {
      for (const float sign : {1.0F, -1.0F}) {
        std::vector<float> v(32, 0.0F);
        v[0] = std::ldexp(6.0F, e);
        const float tie = std::ldexp(cuts[c], e);
        v[2] = sign * tie;
        v[3] = sign * std::bit_cast<float>(std::bit_cast<uint32_t>(tie) + 1);
        v[5] = sign * std::bit_cast<float>(std::bit_cast<uint32_t>(tie) - 1);
        const Packed p = quantise(v);
        const auto code = [&](size_t magnitude) { return magnitude + (sign < 0 ? 8 : 0); };
        EXPECT_EQ(p.packed[1] & 15, code(c)) << e << " cut " << cuts[c];
        EXPECT_EQ(p.packed[1] >> 4, code(c + 1)) << e << " cut " << cuts[c];
        EXPECT_EQ(p.packed[2] >> 4, code(c)) << e << " cut " << cuts[c];
        EXPECT_EQ(p, quantise(v, true));
      }
    }
  }
}

TEST(Mxfp4, ZerosOfBothSignsAndSubnormals) {
  std::vector<float> v(64, -0.0F);
  v[32] = 0x1p-149F;
  v[40] = -0x1p-127F;
  const Packed p = quantise(v);
  EXPECT_EQ(p.scales, (std::vector<uint8_t>{0, 0}));
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(p.packed[i], i == 20 ? 0x0A : 0);  // -1 at element 40, all else 0
  EXPECT_EQ(p, quantise(v, true));
}

TEST(Mxfp4, QuantisedValuesSurviveARoundTrip) {
  std::vector<uint8_t> packed(16 * 200), scales(200);
  const Rng rng(9, 0);
  for (size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<uint8_t>(rng.bits(i));
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = static_cast<uint8_t>(1 + i);
    packed[i * 16] = static_cast<uint8_t>((packed[i * 16] & 0xF0) | 7);  // a 6 in each group fixes the scale
  }
  for (uint8_t& b : packed) {  // code 8 (-0) comes back as 0
    if ((b & 15) == 8) b = static_cast<uint8_t>(b & 0xF0);
    if (b >> 4 == 8) b = static_cast<uint8_t>(b & 15);
  }
  std::vector<float> values(32 * 200);
  mxfp4_dequantise(detect_isa(), packed.data(), scales.data(), 200, 32, values.data());
  EXPECT_EQ(quantise(values), (Packed{packed, scales}));
}

TEST(Mxfp4, RefusesWhatHasNoForm) {
  std::vector<uint8_t> packed(32), scales(2);
  for (const float bad : {NAN, INFINITY, -INFINITY, 3e38F, std::bit_cast<float>(std::bit_cast<uint32_t>(0x1.8p127F) + 1)}) {
    for (const auto fn : {mxfp4_quantise, mxfp4_quantise_ref}) {
      std::vector<float> v(64, 1.0F);
      v[50] = bad;
      const Status s = fn(v.data(), 1, 64, packed.data(), scales.data());
      ASSERT_FALSE(s.ok()) << bad;
      EXPECT_EQ(s.error().code, Code::invalid_argument);
    }
  }
  std::vector<float> v(32, 0x1.8p127F);  // 6 * 2^125: the largest that fits, scale byte 252
  ASSERT_TRUE(mxfp4_quantise(v.data(), 1, 32, packed.data(), scales.data()).ok());
  EXPECT_EQ(scales[0], 252);
  const Status s = mxfp4_quantise(std::vector<float>(64, INFINITY).data(), 2, 32, packed.data(), scales.data());
  EXPECT_NE(s.error().message.find("row 0, columns 0..31"), std::string::npos) << s.error().message;
}

TEST(Mxfp4, RelayoutMovesEveryCodeToItsPlace) {
  for (const int64_t cols : {32, 96, 128, 160, 256, 480, 3584}) {
    constexpr int64_t kRows = 3;
    std::vector<uint8_t> stored(static_cast<size_t>(kRows * cols / 2));
    const Rng rng(7, static_cast<uint64_t>(cols));
    for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<uint8_t>(rng.bits(i));
    std::vector<uint8_t> memory = stored;
    mxfp4_relayout(memory.data(), kRows, cols);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        const uint8_t byte = stored[static_cast<size_t>((row * cols + col) / 2)];
        ASSERT_EQ(mxfp4_code(memory.data() + row * cols / 2, cols, col), col % 2 == 0 ? byte & 15 : byte >> 4)
            << cols << " columns, " << row << ", " << col;
      }
    }
  }
}

}  // namespace
}  // namespace k3::ops
