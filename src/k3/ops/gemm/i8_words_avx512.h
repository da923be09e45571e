// Purpose:  weights of scheme i8 as BF16 words, a row at a time, for the dot and tile kernels.
// Shapes:   groups of 32 columns.
// Units:    scale byte s means 2^(s-133).
// Memory:   writes `columns` words.
// Threads:  pure functions.
// Errors:   none.
// Source:   int8.h. A number of 7 bits times a power of two is exact in BF16. Only for sources named _cpu_avx512bf16.cc or
//           _cpu_amx.cc.
#pragma once

#include <immintrin.h>

#include <bit>

#include "k3/ops/cpu/vec_math.h"
#include "k3/ops/int8/int8.h"
#include "k3/ops/weight.h"

namespace k3::ops {
namespace {  // each source its own copy: no symbol of this code may be shared with sources of lower instruction sets

K3_VEC_INLINE __m512 i8_floats(const int8_t* p, __m512 factor) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), factor);
}

// Row `o` of w, columns [k0, k0 + columns), whole groups.
inline void i8_decode(const Weight& w, int64_t o, int64_t k0, int64_t columns, uint16_t* out) {
  const auto* q = static_cast<const int8_t*>(w.data) + o * w.cols + k0;
  const uint8_t* scales = w.scales + (o * w.cols + k0) / kInt8Group;
  for (int64_t k = 0; k < columns; k += kInt8Group) {
    const uint32_t s = scales[k / kInt8Group];
    const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>((s > 6 ? s - 6 : 0) << 23)));
    const __m512 low = i8_floats(q + k, factor), high = i8_floats(q + k + 16, factor);
    _mm512_storeu_si512(out + k, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
}

}  // namespace
}  // namespace k3::ops
