// Purpose:  lanes.h for AVX-512 (16 lanes).
// Shapes:   tiles of 16 x 16.
// Units:    none.
// Memory:   unaligned loads and stores.
// Threads:  pure functions.
// Errors:   none.
// Source:   vec_math.h. Only for sources named _cpu_avx512.cc.
#pragma once

#include "k3/ops/cpu/lanes.h"
#include "k3/ops/cpu/shuffle_avx512.h"
#include "k3/ops/cpu/vec_math_avx512.h"

namespace k3::ops {

struct Lanes512 : Vec512 {
  static K3_VEC_INLINE F load_bf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static K3_VEC_INLINE F load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static K3_VEC_INLINE F inverse(F x) {  // one step of Newton's on 14 bits: a division takes as long as eight products
    const F y = _mm512_rcp14_ps(x);
    return _mm512_fmadd_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(1.0F)), y);
  }
  static K3_VEC_INLINE F where_zero(F n, F a, F b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(n, _mm512_setzero_ps(), _CMP_EQ_OQ), b, a);
  }
  static K3_VEC_INLINE F with_lane(F a, int64_t lane, float x) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>(1U << lane), a, _mm512_set1_ps(x));
  }
  // Nearest even; NaN stays NaN.
  static K3_VEC_INLINE F round_bf16(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const F rounded = _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, x);
  }
  struct Doubles {
    __m512d low, high;
  };
  static K3_VEC_INLINE Doubles zero_doubles() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
  static K3_VEC_INLINE void add_products(F a, F b, Doubles* sum) {
    sum->low =
        _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(a)), _mm512_cvtps_pd(_mm512_castps512_ps256(b)), sum->low);
    sum->high = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(b, 1)),
                                sum->high);
  }
  static K3_VEC_INLINE double sum_doubles(const Doubles& s) { return _mm512_reduce_add_pd(_mm512_add_pd(s.low, s.high)); }
  static K3_VEC_INLINE F sums(const F* a) {
    F t[8], s[4], u[2];
    K3_UNROLL
    for (int i = 0; i < 8; ++i) {
      t[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    }
    K3_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m512d x = _mm512_castps_pd(t[2 * i]), y = _mm512_castps_pd(t[2 * i + 1]);
      s[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    K3_UNROLL
    for (int i = 0; i < 2; ++i) u[i] = add_parts(s[2 * i], s[2 * i + 1]);
    return add_parts(u[0], u[1]);
  }
  // The sums of four vectors.
  static K3_VEC_INLINE void sum4(F a, F b, F c, F d, float* out) { _mm_storeu_ps(out, sums_of_four(a, b, c, d)); }
  static K3_VEC_INLINE void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
    F rows[16];
    transpose16(from, from_stride * 4, rows);
    K3_UNROLL
    for (int i = 0; i < 16; ++i) store(to + i * to_stride, rows[i]);
  }

 private:
  static K3_VEC_INLINE F add_parts(F a, F b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  }
};

}  // namespace k3::ops
