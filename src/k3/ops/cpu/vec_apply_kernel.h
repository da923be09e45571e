// Purpose:  the loop of vec_apply over a vector type V.
// Shapes:   x, y [count].
// Units:    none.
// Memory:   y is overwritten.
// Threads:  pure functions.
// Errors:   none.
// Source:   vec_math.h.
#pragma once

#include "k3/ops/cpu/vec_apply.h"
#include "k3/ops/cpu/vec_math.h"

namespace k3::ops {

template <class V>
K3_VEC_INLINE typename V::F vec_call(VecFn fn, typename V::F x) {
  switch (fn) {
    case VecFn::exp: return vec_exp<V>(x);
    case VecFn::expm1: return vec_expm1<V>(x);
    case VecFn::sigmoid: return vec_sigmoid<V>(x);
    case VecFn::silu: return vec_silu<V>(x);
    case VecFn::tanh: return vec_tanh<V>(x);
    case VecFn::softplus: return vec_softplus<V>(x);
  }
  return x;
}

template <class V>
K3_VEC_INLINE void vec_loop(VecFn fn, const float* x, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) V::store(y + i, vec_call<V>(fn, V::load(x + i)));
  if (i < count) V::store(y + i, vec_call<V>(fn, V::load(x + i, count - i)), count - i);
}

}  // namespace k3::ops
