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

// A quotient that is still to be divided: divisions are slow, and the product of several quotients needs one.
template <class V>
struct Quotient {
  typename V::F top, bottom;
};

template <class V>
K3_VEC_INLINE Quotient<V> tanh_abs(typename V::F expm1) {  // tanh |x| from e^{-2|x|} - 1
  return {V::neg(expm1), V::add(expm1, V::set(2.0F))};
}

template <class V>
K3_VEC_INLINE typename V::F minus_abs(typename V::F x, float factor) {
  return V::mul(V::abs(x), V::set(-factor));
}

// kSquare: beta is 4, as in K3, and e^{-|g|} of the sigmoid is the square of the e^{-2|g|/4} of the tanh.
template <class V, bool kSquare, bool kCapUp>
K3_VEC_INLINE typename V::F situ_value(typename V::F g, typename V::F u, const GluArgs& kind) {
  using F = typename V::F;
  const F one = V::set(1.0F);
  const ExpPair<V> gate = vec_exp_pair<V>(minus_abs<V>(g, 2.0F / kind.beta));
  const F e = kSquare ? V::mul(gate.exp, gate.exp) : vec_exp_pair<V>(minus_abs<V>(g, 1.0F)).exp;
  const Quotient<V> tanh_g = tanh_abs<V>(gate.expm1);
  // Tops and bottoms lie in [0, 1] and [1, 2]: their products stay far inside the range.
  F top = V::mul(tanh_g.top, V::by_sign(g, e, one)), bottom = V::mul(tanh_g.bottom, V::add(one, e));
  if constexpr (!kCapUp) return V::mul(V::mul(V::copysign(V::set(kind.beta), g), V::div(top, bottom)), u);
  const Quotient<V> tanh_u = tanh_abs<V>(vec_exp_pair<V>(minus_abs<V>(u, 2.0F / kind.linear_beta)).expm1);
  top = V::mul(V::mul(top, V::set(kind.beta * kind.linear_beta)), tanh_u.top);
  bottom = V::mul(bottom, tanh_u.bottom);
  return V::mul(V::copysign(V::div(top, bottom), g), V::copysign(one, u));
}

enum class GluLoop { silu, situ, situ_square };

template <class V, GluLoop kLoop, bool kCapUp>
K3_VEC_INLINE typename V::F glu_value(typename V::F g, typename V::F u, const GluArgs& kind) {
  if constexpr (kLoop == GluLoop::silu) return V::mul(vec_silu<V>(g), u);
  return situ_value<V, kLoop == GluLoop::situ_square, kCapUp>(g, u, kind);
}

template <class V, GluLoop kLoop, bool kCapUp>
K3_VEC_INLINE void glu_loop_of(const float* gate, const float* up, int64_t count, const GluArgs& kind, float* out) {
  int64_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) {
    V::store(out + i, glu_value<V, kLoop, kCapUp>(V::load(gate + i), V::load(up + i), kind));
  }
  if (i < count) {
    const int64_t n = count - i;
    V::store(out + i, glu_value<V, kLoop, kCapUp>(V::load(gate + i, n), V::load(up + i, n), kind), n);
  }
}

template <class V, bool kCapUp>
K3_VEC_INLINE void situ_loop(const float* gate, const float* up, int64_t count, const GluArgs& kind, float* out) {
  if (kind.beta == 4.0F) return glu_loop_of<V, GluLoop::situ_square, kCapUp>(gate, up, count, kind, out);
  glu_loop_of<V, GluLoop::situ, kCapUp>(gate, up, count, kind, out);
}

template <class V>
K3_VEC_INLINE void glu_loop(const float* gate, const float* up, int64_t count, const GluArgs& kind, float* out) {
  if (!kind.situ) return glu_loop_of<V, GluLoop::silu, false>(gate, up, count, kind, out);
  if (kind.linear_beta == 0.0F) return situ_loop<V, false>(gate, up, count, kind, out);
  situ_loop<V, true>(gate, up, count, kind, out);
}

}  // namespace k3::ops
