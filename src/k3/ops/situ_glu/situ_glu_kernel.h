// Purpose:  the gated activations over a vector type V.
// Shapes:   gate, up, out [count].
// Units:    none.
// Memory:   out may be gate or up.
// Threads:  pure functions.
// Errors:   none.
// Source:   situ_glu.h.
#pragma once

#include "k3/ops/cpu/vec_math.h"

namespace k3::ops {

// Glu without its optional: linear_beta 0 means that up passes through.
struct GluArgs {
  bool situ = false;
  float beta = 1.0F;
  float linear_beta = 0.0F;
};

void glu_row_portable(const float* gate, const float* up, int64_t count, const GluArgs& kind, float* out) noexcept;
void glu_row_avx2(const float* gate, const float* up, int64_t count, const GluArgs& kind, float* out) noexcept;
void glu_row_avx512(const float* gate, const float* up, int64_t count, const GluArgs& kind, float* out) noexcept;

// beta tanh(x / beta)
template <class V>
K3_VEC_INLINE typename V::F soft_cap(typename V::F x, float beta) {
  return V::mul(V::set(beta), vec_tanh<V>(V::mul(x, V::set(1.0F / beta))));
}

template <class V, bool kSitu, bool kCapUp>
K3_VEC_INLINE typename V::F glu_value(typename V::F g, typename V::F u, const GluArgs& kind) {
  if constexpr (!kSitu) return V::mul(vec_silu<V>(g), u);
  const typename V::F gated = V::mul(soft_cap<V>(g, kind.beta), vec_sigmoid<V>(g));
  return V::mul(gated, kCapUp ? soft_cap<V>(u, kind.linear_beta) : u);
}

template <class V, bool kSitu, bool kCapUp>
K3_VEC_INLINE void glu_loop_of(const float* gate, const float* up, int64_t count, const GluArgs& kind, float* out) {
  int64_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) {
    V::store(out + i, glu_value<V, kSitu, kCapUp>(V::load(gate + i), V::load(up + i), kind));
  }
  if (i < count) {
    const int64_t n = count - i;
    V::store(out + i, glu_value<V, kSitu, kCapUp>(V::load(gate + i, n), V::load(up + i, n), kind), n);
  }
}

template <class V>
K3_VEC_INLINE void glu_loop(const float* gate, const float* up, int64_t count, const GluArgs& kind, float* out) {
  if (!kind.situ) return glu_loop_of<V, false, false>(gate, up, count, kind, out);
  if (kind.linear_beta == 0.0F) return glu_loop_of<V, true, false>(gate, up, count, kind, out);
  glu_loop_of<V, true, true>(gate, up, count, kind, out);
}

}  // namespace k3::ops
