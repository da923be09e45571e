// Purpose:  small dense products over a vector type V of lanes.h, with the result in registers.
// Shapes:   C [M, N] = sum over k of A(m, k) B[k, N]; A at a + m * a_row + k * a_step, so that it may be read transposed. M is a
//           multiple of 8, N of 16.
// Units:    none.
// Memory:   C is overwritten, or scaled and added to; it may not overlap A or B.
// Threads:  pure functions.
// Errors:   none.
// Source:   kernels.md 2 and 3. One order of sums: k from first to last.
#pragma once

#include "k3/ops/cpu/lanes.h"
#include "k3/ops/kda/train/kda_train_kernel.h"

namespace k3::ops {

struct TrainLeft {  // A
  const float* at;
  int64_t row, step, depth;
};

// Rows of C are scaled by E = keep + factor before the sum is added (Decay of lanes.h); none: C is overwritten.
struct TrainScale {
  const float* keep = nullptr;
  const float* factor = nullptr;
};

template <class V, int R, int N>
K3_VEC_INLINE void product_tile(const TrainLeft& a, const float* b, int64_t b_row, float* c, int64_t c_row, const float* keep,
                                const float* factor) {
  using F = typename V::F;
  F sum[R][N];
  K3_UNROLL
  for (int r = 0; r < R; ++r) {
    K3_UNROLL
    for (int n = 0; n < N; ++n) {
      sum[r][n] = V::zero();
      if (keep == nullptr) continue;
      const F x = V::load(c + r * c_row + n * V::kWidth);
      sum[r][n] = V::fma(x, V::set(factor[r]), V::mul(x, V::set(keep[r])));
    }
  }
  for (int64_t k = 0; k < a.depth; ++k) {
    F row[N];
    K3_UNROLL
    for (int n = 0; n < N; ++n) row[n] = V::load(b + k * b_row + n * V::kWidth);
    K3_UNROLL
    for (int r = 0; r < R; ++r) {
      const F x = V::set(a.at[r * a.row + k * a.step]);
      K3_UNROLL
      for (int n = 0; n < N; ++n) sum[r][n] = V::fma(x, row[n], sum[r][n]);
    }
  }
  K3_UNROLL
  for (int r = 0; r < R; ++r) {
    K3_UNROLL
    for (int n = 0; n < N; ++n) V::store(c + r * c_row + n * V::kWidth, sum[r][n]);
  }
}

template <class V, int N>
K3_VEC_INLINE void product_columns(const TrainLeft& a, int64_t rows, const float* b, int64_t b_row, float* c, int64_t c_row,
                                   const TrainScale& scale) {
  constexpr int kR = V::kWidth == 16 ? 8 : 4;
  for (int64_t m = 0; m < rows; m += kR) {
    TrainLeft part = a;
    part.at += m * a.row;
    product_tile<V, kR, N>(part, b, b_row, c + m * c_row, c_row, scale.keep == nullptr ? nullptr : scale.keep + m,
                           scale.keep == nullptr ? nullptr : scale.factor + m);
  }
}

template <class V>
void train_product(TrainLeft a, int64_t rows, const float* b, int64_t columns, float* c, TrainScale scale = {}) {
  int64_t n = 0;
  for (; n + 2 * V::kWidth <= columns; n += 2 * V::kWidth) {
    product_columns<V, 2>(a, rows, b + n, columns, c + n, columns, scale);
  }
  if (n < columns) product_columns<V, 1>(a, rows, b + n, columns, c + n, columns, scale);
}

// [rows, columns] -> [columns, rows], both multiples of 16.
template <class V>
void train_transpose(const float* from, int64_t rows, int64_t columns, float* to) {
  for (int64_t r = 0; r < rows; r += V::kWidth) {
    for (int64_t j = 0; j < columns; j += V::kWidth) V::transpose(from + r * columns + j, columns, to + j * rows + r, rows);
  }
}

}  // namespace k3::ops
