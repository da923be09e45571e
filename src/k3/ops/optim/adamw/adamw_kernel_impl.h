// Internal to ops/optim. adamw_kernel.h over a vector type V of optim_lanes.h.
#pragma once

#include "k3/ops/cpu/vec_math.h"
#include "k3/ops/optim/adamw/adamw_kernel.h"

namespace k3::ops {

// The new weight; m and v are updated.
template <class V>
K3_VEC_INLINE typename V::F adamw_lanes(const AdamwPiece& p, typename V::F w, typename V::F g, typename V::F& m, typename V::F& v) {
  g = V::mul(g, V::set(p.scale));
  m = V::fma(V::sub(g, m), V::set(p.one_minus_beta1), m);
  v = V::fma(V::mul(g, V::set(p.one_minus_beta2)), g, V::mul(v, V::set(p.beta2)));
  const typename V::F root = V::sqrt(V::mul(v, V::set(p.second_scale)));
  const typename V::F update = V::div(m, V::add(root, V::set(p.eps)));
  return V::fnma(update, V::set(p.step), V::mul(w, V::set(p.keep)));
}

template <class V>
K3_VEC_INLINE void adamw_piece(const AdamwPiece& p) {
  using F = typename V::F;
  int64_t i = 0;
  for (; i + V::kWidth <= p.count; i += V::kWidth) {
    F m = V::load(p.first + i), v = V::load(p.second + i);
    const F w = adamw_lanes<V>(p, V::load(p.weight + i), V::load(p.grad + i), m, v);
    V::store(p.first + i, m);
    V::store(p.second + i, v);
    V::store(p.weight + i, w);
    if (p.bf16 != nullptr) V::store_bf16(p.bf16 + i, w);
  }
  const int64_t n = p.count - i;
  if (n == 0) return;
  F m = V::load(p.first + i, n), v = V::load(p.second + i, n);
  const F w = adamw_lanes<V>(p, V::load(p.weight + i, n), V::load(p.grad + i, n), m, v);
  V::store(p.first + i, m, n);
  V::store(p.second + i, v, n);
  V::store(p.weight + i, w, n);
  if (p.bf16 != nullptr) V::store_bf16(p.bf16 + i, w, n);
}

}  // namespace k3::ops
