// Purpose:  FP32 exp, expm1, sigmoid, silu, tanh and softplus, written once over a vector type V.
// Shapes:   V::F holds V::kWidth lanes; every lane is computed alone, so a masked tail equals a full vector.
// Units:    natural logarithm and radians do not occur; everything is dimensionless.
// Memory:   none.
// Threads:  pure functions.
// Errors:   none. NaN stays NaN; infinities give the limit. Results below 2^-126 come out as subnormals, so
//           flush-to-zero must be off.
// Source:   exp(x) = 2^n e^r with n = round(x / ln 2), |r| <= ln(2) / 2: the Taylor polynomial of degree 7 is off
//           by r^8/8! < 6e-9. Relative error measured by vec_math_test: exp, expm1, sigmoid, silu, tanh,
//           softplus <= 3e-7 (five roundings of 6e-8).
//
// V is one of VecPortable (vec_portable.h), Vec256 (vec_math_avx2.h), Vec512 (vec_math_avx512.h). The last two may be
// included only by sources with the suffix _cpu_avx2.cc and _cpu_avx512.cc. Such sources call no std templates
// and no K3_CHECK: an inline function they emit could replace the portable one at link time.
#pragma once

#include <cstdint>

#define K3_VEC_INLINE inline __attribute__((always_inline))
#define K3_VEC_LAMBDA __attribute__((always_inline))

// Before a loop of constant length (at most 16) whose variables must become registers; -O2 alone keeps such loops.
#if defined(__clang__)
#define K3_UNROLL _Pragma("clang loop unroll(full)")
#else
#define K3_UNROLL _Pragma("GCC unroll 32")
#endif

namespace k3::ops {

namespace vec_detail {

inline constexpr float kLog2E = 1.44269504F;
// ln 2 = kLn2High + kLn2Low; the high part has 9 trailing zero bits, so n * kLn2High is exact for |n| < 512.
inline constexpr float kLn2High = 0x1.62e400p-1F;
inline constexpr float kLn2Low = 0x1.7f7d1cp-20F;

// e^r - 1 for |r| <= 0.35.
template <class V>
K3_VEC_INLINE typename V::F expm1_small(typename V::F r) {
  typename V::F p = V::set(1.0F / 5040);
  p = V::fma(p, r, V::set(1.0F / 720));
  p = V::fma(p, r, V::set(1.0F / 120));
  p = V::fma(p, r, V::set(1.0F / 24));
  p = V::fma(p, r, V::set(1.0F / 6));
  p = V::fma(p, r, V::set(0.5F));
  return V::fma(V::mul(p, r), r, r);
}

template <class V>
K3_VEC_INLINE typename V::F reduce(typename V::F x, typename V::F n) {
  return V::fnma(n, V::set(kLn2Low), V::fnma(n, V::set(kLn2High), x));
}

}  // namespace vec_detail

template <class V>
K3_VEC_INLINE typename V::F vec_exp(typename V::F x) {
  // Outside these limits the result is 0 or infinity. Operand order of min and max keeps NaN.
  x = V::min(V::set(89.0F), V::max(V::set(-104.0F), x));
  const typename V::F n = V::round(V::mul(x, V::set(vec_detail::kLog2E)));
  const typename V::F r = vec_detail::reduce<V>(x, n);
  return V::scale2(V::add(vec_detail::expm1_small<V>(r), V::set(1.0F)), n);
}

// Relative accuracy near 0. Infinite above 89, as exp.
template <class V>
K3_VEC_INLINE typename V::F vec_expm1(typename V::F x) {
  // Below 2^-20 e^x - 1 = x (1 + x / 2) and the polynomial gives that; -0 stays -0.
  x = V::min(V::set(89.0F), V::max(V::set(-104.0F), x));
  const typename V::F n = V::round(V::mul(x, V::set(vec_detail::kLog2E)));
  const typename V::F p = vec_detail::expm1_small<V>(vec_detail::reduce<V>(x, n));
  // 2^n (e^r - 1) + (2^n - 1); written with halves because 2^128 overflows while the result may not.
  const typename V::F half = V::scale2(V::set(0.5F), n);
  const typename V::F sum = V::fma(half, p, V::sub(half, V::set(0.5F)));
  return V::add(sum, sum);
}

// e^x and e^x - 1 of x <= 0 from one polynomial, both with relative accuracy. Below -104: 0 and -1.
template <class V>
struct ExpPair {
  typename V::F exp, expm1;
};

template <class V>
K3_VEC_INLINE ExpPair<V> vec_exp_pair(typename V::F x) {
  x = V::max(V::set(-104.0F), x);
  const typename V::F n = V::round(V::mul(x, V::set(vec_detail::kLog2E)));
  const typename V::F p = vec_detail::expm1_small<V>(vec_detail::reduce<V>(x, n));
  const typename V::F power = V::scale2(V::set(1.0F), n);
  return {V::fma(power, p, power), V::fma(power, p, V::sub(power, V::set(1.0F)))};
}

template <class V>
K3_VEC_INLINE typename V::F vec_sigmoid(typename V::F x) {
  // e^-|x| never overflows, so the left tail keeps its relative accuracy down to the subnormals.
  const typename V::F e = vec_exp<V>(V::neg(V::abs(x)));
  return V::div(V::by_sign(x, e, V::set(1.0F)), V::add(V::set(1.0F), e));
}

template <class V>
K3_VEC_INLINE typename V::F vec_silu(typename V::F x) {
  return V::mul(V::max(V::set(-104.0F), x), vec_sigmoid<V>(x));
}

template <class V>
K3_VEC_INLINE typename V::F vec_tanh(typename V::F x) {
  // tanh |x| = m / (m + 2), m = e^{2|x|} - 1; beyond |x| = 15 it is 1 in FP32.
  const typename V::F a = V::abs(x);
  const typename V::F m = vec_expm1<V>(V::min(V::set(30.0F), V::add(a, a)));
  return V::copysign(V::div(m, V::add(m, V::set(2.0F))), x);
}

// log(1 + u) for u in [0, 1]: 2 atanh(s) with s = u / (2 + u) <= 1/3; the series to s^13 is off by 2e-8 at most.
template <class V>
K3_VEC_INLINE typename V::F vec_log1p_unit(typename V::F u) {
  const typename V::F s = V::div(u, V::add(u, V::set(2.0F)));
  const typename V::F q = V::mul(s, s);
  typename V::F p = V::set(2.0F / 13);
  p = V::fma(p, q, V::set(2.0F / 11));
  p = V::fma(p, q, V::set(2.0F / 9));
  p = V::fma(p, q, V::set(2.0F / 7));
  p = V::fma(p, q, V::set(2.0F / 5));
  p = V::fma(p, q, V::set(2.0F / 3));
  return V::fma(V::mul(p, q), s, V::add(s, s));
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|).
template <class V>
K3_VEC_INLINE typename V::F vec_softplus(typename V::F x) {
  return V::add(V::max(V::set(0.0F), x), vec_log1p_unit<V>(vec_exp<V>(V::neg(V::abs(x)))));
}

}  // namespace k3::ops
