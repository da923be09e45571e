// Purpose:  the 4-lane vector type of the portable kernels (compiler vector extension, any processor).
// Shapes:   4 floats a vector; load and store with a count n < 4 touch n floats only.
// Units:    none.
// Memory:   unaligned loads and stores.
// Threads:  pure functions.
// Errors:   none.
// Source:   vec_math.h. There is no fused multiply-add here: fma rounds twice.
#pragma once

#include <cstring>

#include "k3/ops/cpu/vec_math.h"

namespace k3::ops {

struct VecPortable {
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  static constexpr int64_t kWidth = 4;

  static K3_VEC_INLINE F zero() { return F{}; }
  static K3_VEC_INLINE F set(float x) { return F{x, x, x, x}; }
  static K3_VEC_INLINE F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  static K3_VEC_INLINE F load(const float* p, int64_t n) {
    F x{};
    for (int64_t i = 0; i < n; ++i) x[i] = p[i];
    return x;
  }
  static K3_VEC_INLINE void store(float* p, F x) { std::memcpy(p, &x, sizeof(x)); }
  static K3_VEC_INLINE void store(float* p, F x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) p[i] = x[i];
  }
  static K3_VEC_INLINE F add(F a, F b) { return a + b; }
  static K3_VEC_INLINE F sub(F a, F b) { return a - b; }
  static K3_VEC_INLINE F mul(F a, F b) { return a * b; }
  static K3_VEC_INLINE F div(F a, F b) { return a / b; }
  static K3_VEC_INLINE F fma(F a, F b, F c) { return a * b + c; }
  static K3_VEC_INLINE F fnma(F a, F b, F c) { return c - a * b; }
  static K3_VEC_INLINE F min(F a, F b) { return a < b ? a : b; }  // b when one is NaN
  static K3_VEC_INLINE F max(F a, F b) { return a > b ? a : b; }
  static K3_VEC_INLINE I sign() { return I{INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN}; }
  static K3_VEC_INLINE F abs(F x) { return reinterpret_cast<F>(reinterpret_cast<I>(x) & ~sign()); }
  static K3_VEC_INLINE F neg(F x) { return reinterpret_cast<F>(reinterpret_cast<I>(x) ^ sign()); }
  static K3_VEC_INLINE F copysign(F magnitude, F s) {
    return reinterpret_cast<F>((reinterpret_cast<I>(magnitude) & ~sign()) | (reinterpret_cast<I>(s) & sign()));
  }
  // Nearest whole number for |x| < 2^22: adding 1.5 * 2^23 leaves no bit for the fraction.
  static K3_VEC_INLINE F round(F x) {
    const F magic = set(0x1.8p23F);
    return (x + magic) - magic;
  }
  static K3_VEC_INLINE F scale2(F x, F n) {
    // The low bits of n + 1.5 * 2^23 are n; NaN gives some number, and the product with x = NaN is NaN.
    const I k = reinterpret_cast<I>(n + set(0x1.8p23F)) - reinterpret_cast<I>(set(0x1.8p23F));
    const I k1 = k >> 1;
    const I k2 = k - k1;
    return x * reinterpret_cast<F>((k1 + 127) << 23) * reinterpret_cast<F>((k2 + 127) << 23);
  }
  static K3_VEC_INLINE F by_sign(F x, F negative, F positive) {  // chosen by the sign bit of x
    return reinterpret_cast<I>(x) < 0 ? negative : positive;
  }
  static K3_VEC_INLINE float sum(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  static K3_VEC_INLINE float max_lane(F x) {
    const float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
    return a > b ? a : b;
  }
};

}  // namespace k3::ops
