// Purpose:  lanes.h for AVX2 (8 lanes).
// Shapes:   tiles of 8 x 8.
// Units:    none.
// Memory:   unaligned loads and stores.
// Threads:  pure functions.
// Errors:   none.
// Source:   vec_math.h. Only for sources named _cpu_avx2.cc.
#pragma once

#include "k3/ops/cpu/lanes.h"
#include "k3/ops/cpu/vec_math_avx2.h"

namespace k3::ops {

struct Lanes256 : Vec256 {
  static K3_VEC_INLINE F load_bf16(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static K3_VEC_INLINE F load_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static K3_VEC_INLINE F inverse(F x) { return _mm256_div_ps(_mm256_set1_ps(1.0F), x); }
  static K3_VEC_INLINE F where_zero(F n, F a, F b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(n, _mm256_setzero_ps(), _CMP_EQ_OQ));
  }
  static K3_VEC_INLINE F with_lane(F a, int64_t lane, float x) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpeq_epi32(_mm256_set1_epi32(static_cast<int>(lane)), index);
    return _mm256_blendv_ps(a, _mm256_set1_ps(x), _mm256_castsi256_ps(mask));
  }
  // Nearest even; NaN stays NaN.
  static K3_VEC_INLINE F round_bf16(F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const F rounded = _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
    return _mm256_blendv_ps(rounded, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  struct Doubles {
    __m256d low, high;
  };
  static K3_VEC_INLINE Doubles zero_doubles() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  static K3_VEC_INLINE void add_products(F a, F b, Doubles* sum) {
    sum->low =
        _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_castps256_ps128(b)), sum->low);
    sum->high = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)), _mm256_cvtps_pd(_mm256_extractf128_ps(b, 1)),
                                sum->high);
  }
  static K3_VEC_INLINE double sum_doubles(const Doubles& s) {
    const __m256d t = _mm256_add_pd(s.low, s.high);
    return (t[0] + t[2]) + (t[1] + t[3]);
  }
  static K3_VEC_INLINE F sums(const F* a) {
    const F s = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    const F t = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(s, t, 0x20), _mm256_permute2f128_ps(s, t, 0x31));
  }
  // The sums of four vectors.
  static K3_VEC_INLINE void sum4(F a, F b, F c, F d, float* out) {
    const F s = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
  }
  static K3_VEC_INLINE void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
    F r[8], t[8];
    K3_UNROLL
    for (int i = 0; i < 8; ++i) r[i] = load(from + i * from_stride);
    K3_UNROLL
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    K3_UNROLL
    for (int i = 0; i < 2; ++i) {
      K3_UNROLL
      for (int j = 0; j < 2; ++j) {
        r[4 * i + 2 * j] = _mm256_shuffle_ps(t[4 * i + j], t[4 * i + j + 2], 0x44);
        r[4 * i + 2 * j + 1] = _mm256_shuffle_ps(t[4 * i + j], t[4 * i + j + 2], 0xEE);
      }
    }
    // r[4 i + j], half p: column 4 p + j of rows 4 i .. 4 i + 3.
    K3_UNROLL
    for (int j = 0; j < 4; ++j) {
      store(to + j * to_stride, _mm256_permute2f128_ps(r[j], r[4 + j], 0x20));
      store(to + (4 + j) * to_stride, _mm256_permute2f128_ps(r[j], r[4 + j], 0x31));
    }
  }
};

}  // namespace k3::ops
