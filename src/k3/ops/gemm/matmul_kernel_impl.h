// Internal to ops/gemm: the tile of matmul_kernel.h over a vector type V (vec_math.h has the rules for its includers).
#pragma once

#include "k3/ops/cpu/vec_math.h"
#include "k3/ops/gemm/matmul_kernel.h"

namespace k3::ops {

template <class V, int kRows>
K3_VEC_INLINE void matmul_tile(const MatmulTile& t) {
  constexpr int64_t kWidth = V::kWidth;
  typename V::F low[kRows], high[kRows];
  K3_UNROLL
  for (int i = 0; i < kRows; ++i) low[i] = high[i] = V::zero();
  for (int64_t k = 0; k < t.depth; ++k) {
    const typename V::F b0 = V::load(t.b + k * 2 * kWidth), b1 = V::load(t.b + k * 2 * kWidth + kWidth);
    K3_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const typename V::F a = V::set(t.a[k * kRows + i]);
      low[i] = V::fma(a, b0, low[i]);
      high[i] = V::fma(a, b1, high[i]);
    }
  }
  const int64_t first = t.cols < kWidth ? t.cols : kWidth, second = t.cols - first;
  K3_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (i >= t.rows) continue;
    float* c = t.c + i * t.stride;
    if (t.accumulate) {
      low[i] = V::add(low[i], V::load(c, first));
      if (second > 0) high[i] = V::add(high[i], V::load(c + kWidth, second));
    }
    V::store(c, low[i], first);
    if (second > 0) V::store(c + kWidth, high[i], second);
  }
}

}  // namespace k3::ops
