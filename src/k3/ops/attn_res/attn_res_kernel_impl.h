// Purpose:  attn_res_kernel.h over a vector type V of lanes.h.
// Shapes:   attn_res_kernel.h.
// Units:    none.
// Memory:   attn_res_kernel.h.
// Threads:  pure functions.
// Errors:   none.
// Source:   kernels.md 6.
#pragma once

#include "k3/ops/attn_res/attn_res_kernel.h"
#include "k3/ops/cpu/lanes.h"

namespace k3::ops {

template <class V>
void attn_res_scores(const float* x, const float* query, int64_t n, double* dot, double* squares) {
  typename V::Doubles d = V::zero_doubles(), s = V::zero_doubles();
  int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) {
    const typename V::F a = V::load(x + i);
    V::add_products(a, V::load(query + i), &d);
    V::add_products(a, a, &s);
  }
  if (i < n) {
    const typename V::F a = V::load(x + i, n - i);
    V::add_products(a, V::load(query + i, n - i), &d);
    V::add_products(a, a, &s);
  }
  *dot = V::sum_doubles(d);
  *squares = V::sum_doubles(s);
}

template <class V>
void attn_res_mix(const float* const* rows, const float* weights, int64_t count, int64_t n, float* out) {
  using F = typename V::F;
  int64_t i = 0;
  for (; i + 4 * V::kWidth <= n; i += 4 * V::kWidth) {
    F sum[4];
    K3_UNROLL
    for (int k = 0; k < 4; ++k) sum[k] = V::mul(V::set(weights[0]), V::load(rows[0] + i + k * V::kWidth));
    for (int64_t j = 1; j < count; ++j) {
      const F w = V::set(weights[j]);
      K3_UNROLL
      for (int k = 0; k < 4; ++k) sum[k] = V::fma(w, V::load(rows[j] + i + k * V::kWidth), sum[k]);
    }
    K3_UNROLL
    for (int k = 0; k < 4; ++k) V::store(out + i + k * V::kWidth, sum[k]);
  }
  for (; i < n; i += V::kWidth) {
    const int64_t left = n - i < V::kWidth ? n - i : V::kWidth;
    F sum = V::zero();
    for (int64_t j = 0; j < count; ++j) sum = V::fma(V::set(weights[j]), V::load(rows[j] + i, left), sum);
    V::store(out + i, sum, left);
  }
}

template <class V>
constexpr AttnResKernels attn_res_kernels() {
  return {attn_res_scores<V>, attn_res_mix<V>};
}

}  // namespace k3::ops
