// Purpose:  the codec of 8-bit trunk weights: numbers of MXINT8, a byte each and a power of two for every 32.
// Shapes:   codes [rows, cols] i8; scales [rows, cols / 32] u8; values [rows, cols] f32. cols is a multiple of 32.
// Units:    value = code * 2^(scale - 133), that is code / 64 * 2^(scale - 127). Scale bytes under 7 count as zero.
// Memory:   outputs are overwritten.
// Threads:  pure functions.
// Errors:   quantise: invalid_argument for NaN and infinities, naming the row.
// Source:   OCP Microscaling Formats 1.0: MXINT8. Why a power of two: an FP16 or BF16 scale would halve the rounding error
// at
//           best, but only a power of two keeps every weight exact in BF16, so that the dot and tile kernels take the trunk
//           as they take MXFP4, both policies see the same weights, and a scale costs one byte for 32 weights.
//           Quantisation: scale = floor(log2 amax) + 127; codes are nearest, ties to even, clamped to +-127.
//           Dequantisation is exact.
#pragma once

#include <bit>
#include <cstdint>

#include "k3/base/result.h"

namespace k3::ops {

inline constexpr int64_t kInt8Group = 32;

// 2^(scale - 133); 0 for what would be no normal number.
constexpr float int8_factor(uint8_t scale) {
  return std::bit_cast<float>((scale > 6 ? static_cast<uint32_t>(scale) - 6U : 0U) << 23);
}

Status int8_quantise(const float* values, int64_t rows, int64_t cols, int8_t* codes, uint8_t* scales);
void int8_dequantise(const int8_t* codes, const uint8_t* scales, int64_t rows, int64_t cols, float* out) noexcept;

}  // namespace k3::ops
