// Purpose:  the 8-lane vector type of the AVX2 kernels and its elementary functions.
// Shapes:   8 floats a vector; load and store with a count n < 8 touch n floats only.
// Units:    none.
// Memory:   unaligned loads and stores.
// Threads:  pure functions.
// Errors:   none.
// Source:   vec_math.h (accuracy, rules for sources that include this). Only for sources named _cpu_avx2.cc.
#pragma once

#include <immintrin.h>

#include "k3/ops/cpu/vec_math.h"

namespace k3::ops {

struct Vec256 {
  using F = __m256;
  static constexpr int64_t kWidth = 8;

  static K3_VEC_INLINE __m256i mask(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static K3_VEC_INLINE F zero() { return _mm256_setzero_ps(); }
  static K3_VEC_INLINE F set(float x) { return _mm256_set1_ps(x); }
  static K3_VEC_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  static K3_VEC_INLINE F load(const float* p, int64_t n) { return _mm256_maskload_ps(p, mask(n)); }
  static K3_VEC_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static K3_VEC_INLINE void store(float* p, F x, int64_t n) { _mm256_maskstore_ps(p, mask(n), x); }
  static K3_VEC_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  static K3_VEC_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static K3_VEC_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static K3_VEC_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
  static K3_VEC_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static K3_VEC_INLINE F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
  static K3_VEC_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }              // b when one is NaN
  static K3_VEC_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
  static K3_VEC_INLINE F abs(F x) { return _mm256_andnot_ps(set(-0.0F), x); }
  static K3_VEC_INLINE F neg(F x) { return _mm256_xor_ps(set(-0.0F), x); }
  static K3_VEC_INLINE F copysign(F magnitude, F sign) {
    return _mm256_or_ps(_mm256_andnot_ps(set(-0.0F), magnitude), _mm256_and_ps(set(-0.0F), sign));
  }
  static K3_VEC_INLINE F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // x 2^n for whole |n| <= 252, in two factors so that 2^128 and subnormal results come out right.
  static K3_VEC_INLINE F scale2(F x, F n) {
    const __m256i k = _mm256_cvtps_epi32(n);
    const __m256i k1 = _mm256_srai_epi32(k, 1);
    const __m256i k2 = _mm256_sub_epi32(k, k1);
    const __m256i bias = _mm256_set1_epi32(127);
    const F f1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k1, bias), 23));
    const F f2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k2, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(x, f1), f2);
  }
  static K3_VEC_INLINE F by_sign(F x, F negative, F positive) {  // chosen by the sign bit of x
    return _mm256_blendv_ps(positive, negative, x);
  }
  static K3_VEC_INLINE float sum(F x) {
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }
  static K3_VEC_INLINE float max_lane(F x) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }
};

static K3_VEC_INLINE __m256 exp_ps(__m256 x) { return vec_exp<Vec256>(x); }
static K3_VEC_INLINE __m256 expm1_ps(__m256 x) { return vec_expm1<Vec256>(x); }
static K3_VEC_INLINE __m256 sigmoid_ps(__m256 x) { return vec_sigmoid<Vec256>(x); }
static K3_VEC_INLINE __m256 silu_ps(__m256 x) { return vec_silu<Vec256>(x); }
static K3_VEC_INLINE __m256 tanh_ps(__m256 x) { return vec_tanh<Vec256>(x); }
static K3_VEC_INLINE __m256 softplus_ps(__m256 x) { return vec_softplus<Vec256>(x); }

}  // namespace k3::ops
