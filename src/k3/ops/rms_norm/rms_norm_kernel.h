// Purpose:  one row of the norms over a vector type V.
// Shapes:   x, weight, gate, out [n].
// Units:    none.
// Memory:   out may be x.
// Threads:  pure functions.
// Errors:   none.
// Source:   rms_norm.h. Four accumulators hide the latency of the multiplier; their order is fixed.
#pragma once

#include "k3/ops/cpu/isa.h"
#include "k3/ops/cpu/vec_math.h"

namespace k3::ops {

// gate null: plain norm.
using NormRowFn = void (*)(const float* x, const float* weight, const float* gate, float eps, int64_t n, float* out);
void norm_row_portable(const float* x, const float* weight, const float* gate, float eps, int64_t n, float* out) noexcept;
void norm_row_avx2(const float* x, const float* weight, const float* gate, float eps, int64_t n, float* out) noexcept;
void norm_row_avx512(const float* x, const float* weight, const float* gate, float eps, int64_t n, float* out) noexcept;

NormRowFn norm_row_fn(Isa isa);

template <class V>
K3_VEC_INLINE float sum_of_squares(const float* x, int64_t n) {
  typename V::F acc[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  int64_t i = 0;
  for (; i + 4 * V::kWidth <= n; i += 4 * V::kWidth) {
    K3_UNROLL
    for (int a = 0; a < 4; ++a) {
      const typename V::F v = V::load(x + i + a * V::kWidth);
      acc[a] = V::fma(v, v, acc[a]);
    }
  }
  for (; i < n; i += V::kWidth) {
    const typename V::F v = n - i >= V::kWidth ? V::load(x + i) : V::load(x + i, n - i);
    acc[0] = V::fma(v, v, acc[0]);
  }
  return V::sum(V::add(V::add(acc[0], acc[1]), V::add(acc[2], acc[3])));
}

template <class V, class Gate>
K3_VEC_INLINE void norm_scale(const float* x, const float* weight, float factor, int64_t n, float* out, Gate gate) {
  const typename V::F f = V::set(factor);
  int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) {
    V::store(out + i, gate(V::mul(V::mul(V::load(x + i), f), V::load(weight + i)), i, V::kWidth));
  }
  if (i < n) {
    const int64_t m = n - i;
    V::store(out + i, gate(V::mul(V::mul(V::load(x + i, m), f), V::load(weight + i, m)), i, m), m);
  }
}

template <class V>
K3_VEC_INLINE void norm_row(const float* x, const float* weight, const float* gate, float eps, int64_t n, float* out) {
  const float mean = sum_of_squares<V>(x, n) / static_cast<float>(n);
  const float factor = 1.0F / __builtin_sqrtf(mean + eps);
  if (gate == nullptr) {
    norm_scale<V>(x, weight, factor, n, out, [](typename V::F v, int64_t, int64_t) K3_VEC_LAMBDA { return v; });
    return;
  }
  norm_scale<V>(x, weight, factor, n, out, [gate](typename V::F v, int64_t i, int64_t m) K3_VEC_LAMBDA {
    return V::mul(v, vec_sigmoid<V>(m == V::kWidth ? V::load(gate + i) : V::load(gate + i, m)));
  });
}

}  // namespace k3::ops
