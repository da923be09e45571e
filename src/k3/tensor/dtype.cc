#include "k3/tensor/dtype.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "k3/base/check.h"

namespace k3 {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 9> kNames = {{
    {DType::f32, "F32"},
    {DType::bf16, "BF16"},
    {DType::f16, "F16"},
    {DType::f8_e4m3, "F8_E4M3"},
    {DType::u8, "U8"},
    {DType::i8, "I8"},
    {DType::i32, "I32"},
    {DType::i64, "I64"},
    {DType::f64, "F64"},
}};

}  // namespace

std::string_view dtype_name(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "?";
}

std::optional<DType> dtype_from_name(std::string_view wanted) {
  for (const auto& [value, name] : kNames) {
    if (name == wanted) return value;
  }
  return std::nullopt;
}

float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 31;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {                                              // below 2^-14: subnormal half
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24F;
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)));
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112U << 10)));
}

float f8_e4m3_to_float(uint8_t bits) {
  const float sign = bits & 0x80 ? -1.0F : 1.0F;
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-9F;
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

uint8_t float_to_f8_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFF;
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  if (magnitude > 0x7F800000) return static_cast<uint8_t>(sign | 0x7F);
  const float size = std::bit_cast<float>(magnitude);
  if (size >= 448) return static_cast<uint8_t>(sign | 0x7E);
  if (size < 0x1p-6F) return static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(size * 0x1p9F)));
  const uint32_t rounded = magnitude + 0x7FFFF + (magnitude >> 20 & 1);  // three bits of mantissa stay
  const uint32_t code = (rounded >> 20) - (120U << 3);
  return static_cast<uint8_t>(sign | (code > 0x7E ? 0x7E : code));
}

void convert_to_float(const void* source, DType dtype, int64_t count, float* out) {
  if (count == 0) return;  // empty tensors may have null data
  switch (dtype) {
    case DType::f32: std::memcpy(out, source, static_cast<size_t>(count) * 4); return;
    case DType::bf16: {
      const auto* in = static_cast<const uint16_t*>(source);
      for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(in[i]);
      return;
    }
    case DType::f16: {
      const auto* in = static_cast<const uint16_t*>(source);
      for (int64_t i = 0; i < count; ++i) out[i] = f16_to_float(in[i]);
      return;
    }
    case DType::f8_e4m3: {
      const auto* in = static_cast<const uint8_t*>(source);
      for (int64_t i = 0; i < count; ++i) out[i] = f8_e4m3_to_float(in[i]);
      return;
    }
    case DType::f64: {
      const auto* in = static_cast<const double*>(source);
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]);
      return;
    }
    case DType::u8:
    case DType::i8:
    case DType::i32:
    case DType::i64: break;
  }
  K3_CHECK(false, "convert_to_float from {}", dtype_name(dtype));
}

void convert_from_float(const float* source, DType dtype, int64_t count, void* out) {
  if (count == 0) return;
  if (dtype == DType::f32) {
    std::memcpy(out, source, static_cast<size_t>(count) * 4);
  } else if (dtype == DType::bf16) {
    auto* to = static_cast<uint16_t*>(out);
    for (int64_t i = 0; i < count; ++i) to[i] = float_to_bf16(source[i]);
  } else if (dtype == DType::f16) {
    auto* to = static_cast<uint16_t*>(out);
    for (int64_t i = 0; i < count; ++i) to[i] = float_to_f16(source[i]);
  } else if (dtype == DType::f8_e4m3) {
    auto* to = static_cast<uint8_t*>(out);
    for (int64_t i = 0; i < count; ++i) to[i] = float_to_f8_e4m3(source[i]);
  } else if (dtype == DType::f64) {
    auto* to = static_cast<double*>(out);
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(source[i]);
  } else {
    K3_CHECK(false, "convert_from_float to {}", dtype_name(dtype));
  }
}

}  // namespace k3
