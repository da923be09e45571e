// Internal to matmul. The functions of matmul_kernel.h over a lanes type V (vec_math.h has the rules for its includers).
#pragma once

#include "k3/ops/cpu/lanes.h"
#include "k3/ops/matmul/matmul_kernel.h"

namespace k3::ops {

template <class V, int kRows>
K3_VEC_INLINE void matmul_tile(const MatmulTile& t) {
  constexpr int64_t kWidth = V::kWidth;
  typename V::F low[kRows], high[kRows];
  const float* a[kRows];
  K3_UNROLL
  for (int i = 0; i < kRows; ++i) {
    low[i] = high[i] = V::zero();
    a[i] = t.a + (i < t.rows ? i : t.rows - 1) * t.a_row;  // rows beyond the last are computed and dropped
  }
  const float* b = t.b;
  for (int64_t k = 0, at = 0; k < t.depth; ++k, at += t.a_step, b += t.b_step) {
    const typename V::F b0 = V::load(b), b1 = V::load(b + kWidth);
    K3_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const typename V::F x = V::set(a[i][at]);
      low[i] = V::fma(x, b0, low[i]);
      high[i] = V::fma(x, b1, high[i]);
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

template <class V>
K3_VEC_INLINE void matmul_pack(const float* from, int64_t lane, int64_t step, int64_t count, int64_t depth, float* to) {
  constexpr int64_t kWidth = V::kWidth, kCols = 2 * kWidth;
  if (lane == 1) {
    const int64_t first = count < kWidth ? count : kWidth;
    for (int64_t k = 0; k < depth; ++k) {
      V::store(to + k * kCols, V::load(from + k * step, first));
      V::store(to + k * kCols + kWidth, count > first ? V::load(from + k * step + kWidth, count - first) : V::zero());
    }
    return;
  }
  int64_t k = 0;
  if (step == 1 && count == kCols) {
    for (; k + kWidth <= depth; k += kWidth) {
      V::transpose(from + k, lane, to + k * kCols, kCols);
      V::transpose(from + kWidth * lane + k, lane, to + k * kCols + kWidth, kCols);
    }
  }
  for (; k < depth; ++k) {
    for (int64_t i = 0; i < kCols; ++i) to[k * kCols + i] = i < count ? from[i * lane + k * step] : 0.0F;
  }
}

}  // namespace k3::ops
