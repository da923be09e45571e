// Element types of checkpoints and tensors, and exact conversions between them.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace k3 {

enum class DType { f32, bf16, f16, f8_e4m3, u8, i8, i32, i64, f64 };

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::f8_e4m3:
    case DType::u8:
    case DType::i8: return 1;
    case DType::i64:
    case DType::f64: return 8;
  }
  return 0;
}

std::string_view dtype_name(DType dtype);  // the safetensors spelling: "BF16", "F8_E4M3", ...
std::optional<DType> dtype_from_name(std::string_view name);

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Round to nearest even; NaN stays NaN (quiet).
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float round_to_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);  // round to nearest even, overflow to infinity

float f8_e4m3_to_float(uint8_t bits);  // no infinities; 0x7F and 0xFF are NaN
uint8_t float_to_f8_e4m3(float value);  // round to nearest even; beyond 448 (infinities too): 448; NaN stays NaN

// Converts count elements of a floating dtype (f32, bf16, f16, f8_e4m3) to float.
void convert_to_float(const void* source, DType dtype, int64_t count, float* out);
// Converts floats to f32, bf16, f16 or f8_e4m3.
void convert_from_float(const float* source, DType dtype, int64_t count, void* out);

}  // namespace k3
