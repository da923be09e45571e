// Purpose:  transposes and sums of whole vectors that the AVX-512 kernels share.
// Shapes:   16 rows of 64 bytes; vectors of 16 floats.
// Units:    none.
// Memory:   unaligned loads.
// Threads:  pure functions.
// Errors:   none.
// Source:   vec_math.h. Everything is inlined by force, so sources of any AVX-512 level may include it.
#pragma once

#include <immintrin.h>

#include "k3/ops/cpu/vec_math.h"

namespace k3::ops {

// 16 rows of 64 bytes, `stride` bytes apart, as a matrix of dwords: its transpose in registers.
static K3_VEC_INLINE void transpose16(const void* from, int64_t stride, __m512* out) {
  __m512 r[16], t[16];
  K3_UNROLL
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(static_cast<const char*>(from) + i * stride);
  K3_UNROLL
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  K3_UNROLL
  for (int i = 0; i < 4; ++i) {
    K3_UNROLL
    for (int j = 0; j < 2; ++j) {
      const __m512d x = _mm512_castps_pd(t[4 * i + j]), y = _mm512_castps_pd(t[4 * i + j + 2]);
      r[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
      r[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
    }
  }
  // r[4 i + j], quarter p: column 4 p + j of rows 4 i .. 4 i + 3.
  K3_UNROLL
  for (int j = 0; j < 4; ++j) {
    const __m512 low01 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x44), high01 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xEE);
    const __m512 low23 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x44);
    const __m512 high23 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xEE);
    out[j] = _mm512_shuffle_f32x4(low01, low23, 0x88);
    out[4 + j] = _mm512_shuffle_f32x4(low01, low23, 0xDD);
    out[8 + j] = _mm512_shuffle_f32x4(high01, high23, 0x88);
    out[12 + j] = _mm512_shuffle_f32x4(high01, high23, 0xDD);
  }
}

// The sums of four vectors; for each: lanes 2 apart, then 1 apart inside each quarter, then the quarters.
static K3_VEC_INLINE __m128 sums_of_four(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  const __m512 q =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(q), _mm512_extractf32x8_ps(q, 1));
  return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

}  // namespace k3::ops
