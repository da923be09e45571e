// Purpose:  the MXFP4 codec: exact dequantisation and the quantiser of checkpoints, convert and QAT.
// Shapes:   packed [rows, cols / 2] u8 (element 2j in the low nibble of byte j); scales [rows, cols / 32] u8;
//           values [rows, cols] f32. cols is a multiple of 32.
// Units:    value = code * 2^(scale - 127), code in 0 .5 1 1.5 2 3 4 6 and negatives (bit 3).
// Memory:   outputs are overwritten.
// Threads:  pure functions.
// Errors:   quantise answers invalid_argument for NaN, infinities and values whose scale byte would exceed 252.
// Source:   model.md 2.5. Dequantisation is bit exact for scale bytes 0..252; quantisation is bit exact against
//           mxfp4_quantise_ref: e is the smallest integer with amax <= 6 * 2^e by integer arithmetic, ties go to
//           the lower magnitude, an all-zero group has scale byte 0 and codes 0. A negative value that rounds to
//           zero keeps its sign (code 8), -0 has code 0: byte for byte what tools/oracle/k3_numpy_ref.py writes.
#pragma once

#include <cstdint>

#include "k3/base/result.h"
#include "k3/ops/ctx.h"

namespace k3::ops {

inline constexpr int64_t kMxGroup = 32;

float mxfp4_value(int code);  // 0..15

// Order in memory: what a Weight of scheme mxfp4 refers to. In each whole block of 128 columns of a row (64 bytes) the
// 16-bit word i (0..31) holds in nibble g (0..3, lowest first) the code of column 32 g + i, so that a shift and one
// 16-bit permute decode a group of 32 in its order. Columns beyond the last whole block keep the stored order.
inline constexpr int64_t kMxBlock = 128;

// Stored order to the order in memory, in place.
void mxfp4_relayout(uint8_t* packed, int64_t rows, int64_t cols) noexcept;
// Code of a column in a row that is in the order of memory.
int mxfp4_code(const uint8_t* row, int64_t cols, int64_t col) noexcept;

void mxfp4_dequantise(Isa isa, const uint8_t* packed, const uint8_t* scales, int64_t rows, int64_t cols,
                      float* out) noexcept;
void mxfp4_dequantise_ref(const uint8_t* packed, const uint8_t* scales, int64_t rows, int64_t cols, float* out) noexcept;

Status mxfp4_quantise(const float* values, int64_t rows, int64_t cols, uint8_t* packed, uint8_t* scales);
Status mxfp4_quantise_ref(const float* values, int64_t rows, int64_t cols, uint8_t* packed, uint8_t* scales);

}  // namespace k3::ops
