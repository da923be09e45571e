// Purpose:  what the token mixers need of a vector type beyond vec_math.h: half-width loads, lane inserts, sums and
//           transposes of whole tiles, decay factors.
// Shapes:   a tile is kWidth vectors of kWidth lanes.
// Units:    none.
// Memory:   unaligned loads and stores.
// Threads:  pure functions.
// Errors:   none.
// Source:   vec_math.h (rules for sources that include the ISA variants lanes_avx2.h, lanes_avx512.h).
#pragma once

#include "k3/ops/cpu/vec_portable.h"
#include "k3/tensor/dtype.h"

namespace k3::ops {

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// e^g for g <= 0 as a pair: x e^g = fma(x, factor, x * keep). Near 0 keep is 1 and factor e^g - 1, so that a decay
// of 0.999 does not lose its last digits a thousand times over; elsewhere keep is 0 and factor e^g.
template <class V>
struct Decay {
  typename V::F keep, factor;
};

template <class V>
K3_VEC_INLINE Decay<V> decay_of(typename V::F g) {
  const typename V::F n = V::round(V::mul(g, V::set(vec_detail::kLog2E)));
  const typename V::F one = V::set(1.0F);
  const typename V::F small = vec_detail::expm1_small<V>(vec_detail::reduce<V>(g, n));
  return {V::where_zero(n, one, V::zero()), V::where_zero(n, small, vec_exp<V>(g))};
}

struct LanesPortable : VecPortable {
  static K3_VEC_INLINE F load_bf16(const uint16_t* p) {
    return F{bf16_to_float(p[0]), bf16_to_float(p[1]), bf16_to_float(p[2]), bf16_to_float(p[3])};
  }
  static K3_VEC_INLINE F load_f16(const uint16_t* p) {
    return F{f16_to_float(p[0]), f16_to_float(p[1]), f16_to_float(p[2]), f16_to_float(p[3])};
  }
  static K3_VEC_INLINE F inverse(F x) { return set(1.0F) / x; }  // 1 / x of normal x, within 1 ulp
  // a where n == 0, else b.
  static K3_VEC_INLINE F where_zero(F n, F a, F b) { return n == zero() ? a : b; }
  static K3_VEC_INLINE F with_lane(F a, int64_t lane, float x) {
    a[lane] = x;
    return a;
  }
  static K3_VEC_INLINE F round_bf16(F x) {
    return F{round_to_bf16(x[0]), round_to_bf16(x[1]), round_to_bf16(x[2]), round_to_bf16(x[3])};
  }
  // Running sums of products in double, for sums that a later factor amplifies.
  struct Doubles {
    double d[4];
  };
  static K3_VEC_INLINE Doubles zero_doubles() { return {}; }
  static K3_VEC_INLINE void add_products(F a, F b, Doubles* sum) {
    for (int i = 0; i < 4; ++i) sum->d[i] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  static K3_VEC_INLINE double sum_doubles(const Doubles& s) { return (s.d[0] + s.d[2]) + (s.d[1] + s.d[3]); }
  // Lane i of the result is the sum of a[i]; the same addition tree for every i.
  static K3_VEC_INLINE F sums(const F* a) { return F{sum(a[0]), sum(a[1]), sum(a[2]), sum(a[3])}; }
  // The sums of four vectors.
  static K3_VEC_INLINE void sum4(F a, F b, F c, F d, float* out) {
    out[0] = sum(a), out[1] = sum(b), out[2] = sum(c), out[3] = sum(d);
  }
  static K3_VEC_INLINE void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) to[j * to_stride + i] = from[i * from_stride + j];
    }
  }
};

}  // namespace k3::ops
