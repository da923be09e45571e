// Purpose:  the derivatives of the gated activations over a vector type V.
// Shapes:   gate, up, dout, dgate, dup [count].
// Units:    none.
// Memory:   dgate and dup are overwritten; either may be dout.
// Threads:  pure functions.
// Errors:   none.
// Source:   situ_glu_train.h.
#pragma once

#include "k3/ops/situ_glu/situ_glu_kernel.h"

namespace k3::ops {

using GluVjpFn = void (*)(const float* gate, const float* up, const float* dout, int64_t count, const GluArgs& kind, float* dgate,
                          float* dup) noexcept;
void glu_vjp_portable(const float*, const float*, const float*, int64_t, const GluArgs&, float*, float*) noexcept;
void glu_vjp_avx2(const float*, const float*, const float*, int64_t, const GluArgs&, float*, float*) noexcept;
void glu_vjp_avx512(const float*, const float*, const float*, int64_t, const GluArgs&, float*, float*) noexcept;

template <class V>
K3_VEC_INLINE void glu_vjp_step(typename V::F a, typename V::F c, typename V::F d, const GluArgs& kind, typename V::F* da,
                                typename V::F* dc) {
  using F = typename V::F;
  const F one = V::set(1.0F), s = vec_sigmoid<V>(a), rest = V::mul(s, V::sub(one, s));
  if (!kind.situ) {
    *da = V::mul(d, V::mul(V::fma(a, rest, s), c));
    *dc = V::mul(d, V::mul(a, s));
    return;
  }
  const F beta = V::set(kind.beta), t1 = vec_tanh<V>(V::mul(a, V::set(1.0F / kind.beta)));
  const F slope = V::fma(V::fnma(t1, t1, one), s, V::mul(V::mul(beta, t1), rest));
  const F gated = V::mul(V::mul(beta, t1), s);
  if (kind.linear_beta == 0.0F) {
    *da = V::mul(d, V::mul(slope, c));
    *dc = V::mul(d, gated);
    return;
  }
  const F t2 = vec_tanh<V>(V::mul(c, V::set(1.0F / kind.linear_beta)));
  *da = V::mul(d, V::mul(slope, V::mul(V::set(kind.linear_beta), t2)));
  *dc = V::mul(d, V::mul(gated, V::fnma(t2, t2, one)));
}

template <class V>
K3_VEC_INLINE void glu_vjp_loop(const float* gate, const float* up, const float* dout, int64_t count, const GluArgs& kind, float* dgate,
                                float* dup) {
  for (int64_t i = 0; i < count; i += V::kWidth) {
    const int64_t n = count - i < V::kWidth ? count - i : V::kWidth;
    typename V::F da, dc;
    glu_vjp_step<V>(V::load(gate + i, n), V::load(up + i, n), V::load(dout + i, n), kind, &da, &dc);
    V::store(dgate + i, da, n);
    V::store(dup + i, dc, n);
  }
}

}  // namespace k3::ops
