// dtype conversions over all bit patterns, views, storage, workspace.
#include "k3/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>

namespace k3 {
namespace {

TEST(DType, F8E4m3RoundTripAndRounding) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    const float value = f8_e4m3_to_float(bits);
    if (std::isnan(value)) {
      EXPECT_EQ(float_to_f8_e4m3(value) & 0x7F, 0x7F);
      continue;
    }
    EXPECT_EQ(float_to_f8_e4m3(value), bits) << code;
    // Between two neighbours: nearest, ties to the even code.
    if ((code & 0x7F) >= 0x7E) continue;
    const float next = f8_e4m3_to_float(static_cast<uint8_t>(code + 1)), middle = (value + next) / 2;
    EXPECT_EQ(float_to_f8_e4m3(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(float_to_f8_e4m3(std::nextafter(middle, value)), code) << code;
    EXPECT_EQ(float_to_f8_e4m3(std::nextafter(middle, next)), code + 1) << code;
  }
  EXPECT_EQ(float_to_f8_e4m3(1e9F), 0x7E);
  EXPECT_EQ(float_to_f8_e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
  EXPECT_EQ(float_to_f8_e4m3(460.0F), 0x7E);
}

TEST(DType, F16RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    EXPECT_EQ(float_to_f16(value), bits) << bits;
  }
  EXPECT_EQ(float_to_f16(65519.0F), 0x7BFF);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7C00);
  EXPECT_EQ(float_to_f16(0x1p-25F), 0);  // tie to even
  EXPECT_EQ(float_to_f16(0x1.8p-25F), 1);
}

TEST(DType, Bf16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    EXPECT_EQ(float_to_bf16(value), bits);
  }
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F808000U)), 0x3F80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7F800001U)))));
}

TEST(DType, F8E4M3Values) {
  EXPECT_EQ(f8_e4m3_to_float(0x7E), 448.0F);
  EXPECT_EQ(f8_e4m3_to_float(0x01), 0x1p-9F);
  EXPECT_EQ(f8_e4m3_to_float(0xB8), -1.0F);
  EXPECT_TRUE(std::isnan(f8_e4m3_to_float(0x7F)));
}

TEST(Tensor, ViewsKeepStrides) {
  std::vector<float> data(24);
  for (size_t i = 0; i < 24; ++i) data[i] = static_cast<float>(i);
  const Tensor t(data.data(), DType::f32, {4, 6});
  const Tensor c = t.columns(2, 5).slice(1, 3);
  EXPECT_EQ(c.shape_text(), "[2, 3]");
  EXPECT_EQ(c.row(1)[0], 14.0F);
  EXPECT_FALSE(c.contiguous());
  EXPECT_TRUE(t.reshape({2, 12}).contiguous());
  EXPECT_EQ(t.at(3).f32()[5], 23.0F);
}

TEST(Storage, ZeroedAndRefusesAbsurdSizes) {
  const Storage s = Storage::allocate(9 << 20).value();
  for (const std::byte b : s.bytes()) ASSERT_EQ(b, std::byte{0});
  EXPECT_EQ(Storage::allocate(int64_t{1} << 60).error().code, Code::exhausted);
  EXPECT_EQ(Storage::allocate(-1).error().code, Code::exhausted);
}

TEST(Workspace, ScopesGiveBackAndReuse) {
  Workspace ws;
  void* first = nullptr;
  {
    const Workspace::Scope scope(ws);
    first = ws.bytes(100);
    {
      const Workspace::Scope inner(ws);
      ws.bytes(5 << 20);
    }
    ws.bytes(10);
  }
  const Workspace::Scope scope(ws);
  EXPECT_EQ(ws.bytes(100), first);
  EXPECT_GE(ws.peak_bytes(), 5 << 20);
}

}  // namespace
}  // namespace k3
