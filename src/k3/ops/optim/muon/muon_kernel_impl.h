// Internal to ops/optim. muon_kernel.h over a vector type V of optim_lanes.h.
#pragma once

#include "k3/ops/cpu/vec_math.h"
#include "k3/ops/optim/muon/muon_kernel.h"

namespace k3::ops {

template <class V>
K3_VEC_INLINE typename V::F momentum_lanes(const MomentumJob& job, typename V::F grad, typename V::F& m) {
  const typename V::F g = V::mul(grad, V::set(job.scale)), mu = V::set(job.mu);
  m = V::fma(m, mu, g);
  return job.nesterov ? V::fma(m, mu, g) : m;
}

template <class V>
double muon_momentum(const MomentumJob& job) {
  typename V::Doubles squares = V::zero_doubles();
  int64_t i = 0;
  for (; i + V::kWidth <= job.count; i += V::kWidth) {
    typename V::F m = V::load(job.momentum + i);
    const typename V::F u = momentum_lanes<V>(job, V::load(job.grad + i), m);
    V::store(job.momentum + i, m);
    V::store(job.out + i, u);
    V::add_products(u, u, &squares);
  }
  if (const int64_t n = job.count - i; n > 0) {
    typename V::F m = V::load(job.momentum + i, n);
    const typename V::F u = momentum_lanes<V>(job, V::load(job.grad + i, n), m);  // zero beyond n
    V::store(job.momentum + i, m, n);
    V::store(job.out + i, u);
    V::add_products(u, u, &squares);
    i += V::kWidth;
  }
  for (; i < job.padded; i += V::kWidth) V::store(job.out + i, V::zero());
  return V::sum_doubles(squares);
}

template <class V>
void muon_scale(float* x, int64_t count, float factor) {
  for (int64_t i = 0; i < count; i += V::kWidth) V::store(x + i, V::mul(V::load(x + i), V::set(factor)));
}

template <class V>
void muon_transpose(const float* from, int64_t from_stride, int64_t row_begin, int64_t row_end, int64_t cols, float* to,
                    int64_t to_stride) {
  for (int64_t i = row_begin; i < row_end; i += V::kWidth) {
    for (int64_t j = 0; j < cols; j += V::kWidth) V::transpose(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
  }
}

template <class V>
void muon_mirror(float* x, int64_t stride, int64_t row_begin, int64_t row_end) {
  for (int64_t i = row_begin; i < row_end; i += V::kWidth) {
    for (int64_t j = 0; j < i; j += V::kWidth) V::transpose(x + j * stride + i, stride, x + i * stride + j, stride);
  }
}

// kRows x kVectors vectors of the result at (i, j).
template <class V, int kRows, int kVectors>
K3_VEC_INLINE void product_tile(const ProductJob& p, int64_t i, int64_t j) {
  using F = typename V::F;
  F sum[kRows][kVectors];
  K3_UNROLL
  for (int r = 0; r < kRows; ++r) {
    K3_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[r][v] = V::zero();
  }
  const float* left = p.left + i;
  const float* right = p.right + j;
  for (int64_t k = 0; k < p.depth; ++k, left += p.left_stride, right += p.right_stride) {
    F b[kVectors];
    K3_UNROLL
    for (int v = 0; v < kVectors; ++v) b[v] = V::load(right + v * V::kWidth);
    K3_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const F a = V::set(left[r]);
      K3_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = V::fma(a, b[v], sum[r][v]);
    }
  }
  const F alpha = V::set(p.alpha), beta = V::set(p.beta);
  K3_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = (i + r) * p.out_stride + j;
    K3_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      F x = V::mul(alpha, sum[r][v]);
      if (p.old != nullptr) x = V::fma(beta, V::load(p.old + at + v * V::kWidth), x);
      V::store(p.out + at + v * V::kWidth, x);
    }
  }
}

template <class V, int kVectors>
K3_VEC_INLINE void product_panel(const ProductJob& p, int64_t j) {
  // Rows of a symmetric result whose block of the diagonal lies right of this panel need nothing of it.
  int64_t end = p.row_end;
  if (p.upper && end > j + kVectors * V::kWidth) end = j + kVectors * V::kWidth;
  for (int64_t i = p.row_begin; i < end; i += V::kTileRows) product_tile<V, V::kTileRows, kVectors>(p, i, j);
}

template <class V>
void muon_product(const ProductJob& p) {
  constexpr int64_t kPanel = V::kTileVectors * V::kWidth;
  int64_t j = 0;
  for (; j + kPanel <= p.cols; j += kPanel) product_panel<V, V::kTileVectors>(p, j);
  const int64_t left = (p.cols - j) / V::kWidth;
  if (V::kTileVectors > 2 && left == 2) product_panel<V, 2>(p, j);
  if (left == 1) product_panel<V, 1>(p, j);
}

template <class V>
void muon_update(const UpdateJob& job) {
  const typename V::F keep = V::set(job.keep), step = V::set(job.step);
  int64_t i = 0;
  for (; i + V::kWidth <= job.count; i += V::kWidth) {
    const typename V::F w = V::fnma(V::load(job.o + i), step, V::mul(V::load(job.weight + i), keep));
    V::store(job.weight + i, w);
    if (job.bf16 != nullptr) V::store_bf16(job.bf16 + i, w);
  }
  const int64_t n = job.count - i;
  if (n == 0) return;
  const typename V::F w = V::fnma(V::load(job.o + i, n), step, V::mul(V::load(job.weight + i, n), keep));
  V::store(job.weight + i, w, n);
  if (job.bf16 != nullptr) V::store_bf16(job.bf16 + i, w, n);
}

template <class V>
constexpr MuonKernels muon_kernels() {
  return {muon_momentum<V>, muon_scale<V>, muon_transpose<V>, muon_mirror<V>, muon_product<V>, muon_update<V>};
}

}  // namespace k3::ops
