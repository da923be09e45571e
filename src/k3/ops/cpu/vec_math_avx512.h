// Purpose:  the 16-lane vector type of the AVX-512 kernels and its elementary functions.
// Shapes:   16 floats a vector; load and store with a count n < 16 touch n floats only.
// Units:    none.
// Memory:   unaligned loads and stores.
// Threads:  pure functions.
// Errors:   none.
// Source:   vec_math.h (accuracy, rules for sources that include this). Only for sources named _cpu_avx512.cc.
#pragma once

#include <immintrin.h>

#include "k3/ops/cpu/vec_math.h"

namespace k3::ops {

struct Vec512 {
  using F = __m512;
  static constexpr int64_t kWidth = 16;

  static K3_VEC_INLINE __mmask16 mask(int64_t n) { return static_cast<__mmask16>((1U << n) - 1U); }
  static K3_VEC_INLINE F zero() { return _mm512_setzero_ps(); }
  static K3_VEC_INLINE F set(float x) { return _mm512_set1_ps(x); }
  static K3_VEC_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static K3_VEC_INLINE F load(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static K3_VEC_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static K3_VEC_INLINE void store(float* p, F x, int64_t n) { _mm512_mask_storeu_ps(p, mask(n), x); }
  static K3_VEC_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  static K3_VEC_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static K3_VEC_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static K3_VEC_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  static K3_VEC_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static K3_VEC_INLINE F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
  static K3_VEC_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }              // b when one is NaN
  static K3_VEC_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  static K3_VEC_INLINE F abs(F x) { return _mm512_andnot_ps(set(-0.0F), x); }
  static K3_VEC_INLINE F neg(F x) { return _mm512_xor_ps(set(-0.0F), x); }
  static K3_VEC_INLINE F copysign(F magnitude, F sign) {
    return _mm512_or_ps(_mm512_andnot_ps(set(-0.0F), magnitude), _mm512_and_ps(set(-0.0F), sign));
  }
  static K3_VEC_INLINE F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static K3_VEC_INLINE F scale2(F x, F n) { return _mm512_scalef_ps(x, n); }  // x 2^n, n whole
  static K3_VEC_INLINE F by_sign(F x, F negative, F positive) {               // chosen by the sign bit of x
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), positive, negative);
  }
  // Sum of the lanes in a fixed order: halves, quarters, pairs.
  static K3_VEC_INLINE float sum(F x) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }
  static K3_VEC_INLINE float max_lane(F x) {
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }
};

static K3_VEC_INLINE __m512 exp_ps(__m512 x) { return vec_exp<Vec512>(x); }
static K3_VEC_INLINE __m512 expm1_ps(__m512 x) { return vec_expm1<Vec512>(x); }
static K3_VEC_INLINE __m512 sigmoid_ps(__m512 x) { return vec_sigmoid<Vec512>(x); }
static K3_VEC_INLINE __m512 silu_ps(__m512 x) { return vec_silu<Vec512>(x); }
static K3_VEC_INLINE __m512 tanh_ps(__m512 x) { return vec_tanh<Vec512>(x); }
static K3_VEC_INLINE __m512 softplus_ps(__m512 x) { return vec_softplus<Vec512>(x); }

}  // namespace k3::ops
