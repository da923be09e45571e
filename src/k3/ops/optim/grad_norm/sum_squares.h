// Internal to ops/optim. Sum of squares of a piece, in double.
#pragma once

#include <cstdint>

#include "k3/ops/cpu/vec_math.h"

namespace k3::ops {

using SumSquaresFn = double (*)(const float* x, int64_t count);
double sum_squares_portable(const float* x, int64_t count) noexcept;
double sum_squares_avx2(const float* x, int64_t count) noexcept;
double sum_squares_avx512(const float* x, int64_t count) noexcept;

template <class V>
K3_VEC_INLINE double sum_squares_lanes(const float* x, int64_t count) {
  typename V::Doubles a = V::zero_doubles(), b = V::zero_doubles();  // two: a chain of additions waits for itself
  int64_t i = 0;
  for (; i + 2 * V::kWidth <= count; i += 2 * V::kWidth) {
    const typename V::F p = V::load(x + i), q = V::load(x + i + V::kWidth);
    V::add_products(p, p, &a);
    V::add_products(q, q, &b);
  }
  for (; i < count; i += V::kWidth) {
    const int64_t left = count - i < V::kWidth ? count - i : V::kWidth;
    const typename V::F p = V::load(x + i, left);
    V::add_products(p, p, &a);
  }
  return V::sum_doubles(a) + V::sum_doubles(b);
}

}  // namespace k3::ops
