// Purpose:  weights of int8_dots.h as integers and the factors of their groups.
// Shapes:   whole groups of 32 columns of one row; k0 is a multiple of 128.
// Units:    weight = integer * factor.
// Memory:   outputs are overwritten.
// Threads:  pure functions.
// Errors:   none.
// Source:   int8_dots.h. Exact.
#pragma once

#include <bit>
#include <cstring>

#include "k3/ops/gemm/int8_dots.h"
#include "k3/ops/mxfp4/mxfp4.h"

namespace k3::ops {
namespace {  // each source its own copy: no symbol of this code may be shared with sources of other instruction sets

constexpr int8_t kMxDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Scale byte minus this is the exponent field of the factor; what is left at or under 0 counts as zero.
inline uint32_t int8_scale_bias(Scheme scheme) { return scheme == Scheme::i8 ? 6 : 1; }

inline const uint8_t* int8_weight_row(const Weight& w, int64_t row, int64_t k0) {
  return static_cast<const uint8_t*>(w.data) + row * scheme_row_bytes(w.scheme, w.cols) + scheme_row_bytes(w.scheme, k0);
}

inline void int8_factors(const Weight& w, int64_t row, int64_t k0, int64_t columns, float* out) {
  const uint8_t* scales = w.scales + (row * w.cols + k0) / kInt8DotGroup;
  const uint32_t bias = int8_scale_bias(w.scheme);
  for (int64_t g = 0; g < columns / kInt8DotGroup; ++g) {
    const uint32_t s = scales[g];
    out[g] = std::bit_cast<float>((s > bias ? s - bias : 0) << 23);
  }
}

inline void int8_decode(const Weight& w, int64_t row, int64_t k0, int64_t columns, int8_t* out) {
  const uint8_t* p = int8_weight_row(w, row, k0);
  if (w.scheme == Scheme::i8) {
    std::memcpy(out, p, static_cast<size_t>(columns));
    return;
  }
  const int64_t in_blocks = w.cols / kMxBlock * kMxBlock - k0, whole = in_blocks < columns ? in_blocks : columns;
  int64_t k = 0;
  for (; k < whole; k += kMxBlock, p += kMxBlock / 2) {
    for (int64_t i = 0; i < kMxGroup; ++i) {
      out[k + i] = kMxDoubled[p[2 * i] & 15];
      out[k + i + 32] = kMxDoubled[p[2 * i] >> 4];
      out[k + i + 64] = kMxDoubled[p[2 * i + 1] & 15];
      out[k + i + 96] = kMxDoubled[p[2 * i + 1] >> 4];
    }
  }
  for (; k < columns; k += 2, ++p) {
    out[k] = kMxDoubled[*p & 15];
    out[k + 1] = kMxDoubled[*p >> 4];
  }
}

}  // namespace
}  // namespace k3::ops
