// Purpose:  the two small matrix products of attention over a vector type V of lanes.h, and widening of rows.
// Shapes:   rows padded with zeros to a multiple of V::kWidth numbers.
// Units:    none.
// Memory:   as commented.
// Threads:  pure functions.
// Errors:   none.
// Source:   the arithmetic of one output number is the same wherever it lies in a tile and however many rows and
//           columns there are: one lane-wise FMA chain over the depth, then one fixed tree (dots); one FMA chain over
//           the depth (sums). Callers rely on it for determinism.
#pragma once

#include "k3/ops/cpu/lanes.h"
#include "k3/ops/weight.h"

namespace k3::ops {

// n numbers of a 2- or 4-byte format to FP32, zeros up to padded.
template <class V>
K3_VEC_INLINE void widen_row(const void* from, Scheme scheme, int64_t n, int64_t padded, float* to) {
  int64_t i = 0;
  if (scheme == Scheme::f32) {
    const float* p = static_cast<const float*>(from);
    for (; i + V::kWidth <= n; i += V::kWidth) V::store(to + i, V::load(p + i));
    for (; i < n; ++i) to[i] = p[i];
  } else {
    const auto* p = static_cast<const uint16_t*>(from);
    const bool half = scheme == Scheme::f16;
    for (; i + V::kWidth <= n; i += V::kWidth) V::store(to + i, half ? V::load_f16(p + i) : V::load_bf16(p + i));
    if (i < n) {
      uint16_t rest[V::kWidth] = {};
      for (int64_t k = 0; i + k < n; ++k) rest[k] = p[i + k];
      const typename V::F x = half ? V::load_f16(rest) : V::load_bf16(rest);
      for (int64_t k = 0; i < n; ++i, ++k) to[i] = x[k];
    }
  }
  for (; i < padded; ++i) to[i] = 0;
}

template <class V>
K3_VEC_INLINE void widen_rows(const Weight& w, int64_t first, int64_t count, int64_t padded, float* to) {
  const int64_t bytes = scheme_row_bytes(w.scheme, w.cols);
  for (int64_t r = 0; r < count; ++r) {
    widen_row<V>(static_cast<const uint8_t*>(w.data) + (first + r) * bytes, w.scheme, w.cols, padded, to + r * padded);
  }
}

// kWidth dot products at a time, kM rows of a by kN of b; rows beyond the edge repeat the last one and are dropped.
template <class V, int M, int N>
K3_VEC_INLINE void dot_tile(const float* const* a, const float* const* b, int64_t depth, int64_t rows, int64_t columns,
                            float* out, int64_t out_stride) {
  using F = typename V::F;
  F sum[M * N];
  K3_UNROLL
  for (int i = 0; i < M * N; ++i) sum[i] = V::zero();
  for (int64_t d = 0; d < depth; d += V::kWidth) {
    F y[N];
    K3_UNROLL
    for (int j = 0; j < N; ++j) y[j] = V::load(b[j] + d);
    K3_UNROLL
    for (int i = 0; i < M; ++i) {
      const F x = V::load(a[i] + d);
      K3_UNROLL
      for (int j = 0; j < N; ++j) sum[i * N + j] = V::fma(x, y[j], sum[i * N + j]);
    }
  }
  float total[V::kWidth];
  V::store(total, V::sums(sum));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out[i * out_stride + j] = total[i * N + j];
  }
}

// One row of a by rows [begin, end) of b.
template <class V>
K3_VEC_INLINE void dot_row(const float* a, const float* b, int64_t b_stride, int64_t begin, int64_t end, int64_t depth,
                           float* out) {
  constexpr int kN = static_cast<int>(V::kWidth);
  for (int64_t n0 = begin; n0 < end; n0 += kN) {
    const float* bs[kN];
    K3_UNROLL
    for (int j = 0; j < kN; ++j) bs[j] = b + (n0 + j < end ? n0 + j : end - 1) * b_stride;
    dot_tile<V, 1, kN>(&a, bs, depth, 1, end - n0 < kN ? end - n0 : kN, out + n0, 0);
  }
}

// out[m][n] = a[m] . b[n] over `depth` (a multiple of kWidth). Rows of b are taken in groups that stay in L1 while
// all rows of a pass.
template <class V>
K3_VEC_INLINE void dot_rows(const float* a, int64_t a_stride, int64_t m, const float* b, int64_t b_stride, int64_t n,
                            int64_t depth, float* out, int64_t out_stride) {
  constexpr int kN = V::kWidth >= 8 ? 4 : 2;
  constexpr int kM = static_cast<int>(V::kWidth) / kN;
  constexpr int64_t kL1Floats = 8192;
  const int64_t fit = kL1Floats / depth / kN * kN, group = fit < kN ? kN : fit;
  for (int64_t g = 0; g < n; g += group) {
    const int64_t end = g + group < n ? g + group : n;
    for (int64_t m0 = 0; m0 < m; m0 += kM) {
      if (m - m0 == 1) {  // decode: no row to share, so more of b at a time
        dot_row<V>(a + m0 * a_stride, b, b_stride, g, end, depth, out + m0 * out_stride);
        break;
      }
      const float* as[kM];
      K3_UNROLL
      for (int i = 0; i < kM; ++i) as[i] = a + (m0 + i < m ? m0 + i : m - 1) * a_stride;
      for (int64_t n0 = g; n0 < end; n0 += kN) {
        const float* bs[kN];
        K3_UNROLL
        for (int j = 0; j < kN; ++j) bs[j] = b + (n0 + j < n ? n0 + j : n - 1) * b_stride;
        dot_tile<V, kM, kN>(as, bs, depth, m - m0 < kM ? m - m0 : kM, end - n0 < kN ? end - n0 : kN,
                            out + m0 * out_stride + n0, out_stride);
      }
    }
  }
}

template <class V, int M, int N>
K3_VEC_INLINE void add_tile(const float* p, int64_t p_stride, const float* b, int64_t b_stride, int64_t depth, float* out,
                            int64_t out_stride) {
  using F = typename V::F;
  F sum[M][N];
  K3_UNROLL
  for (int i = 0; i < M; ++i) {
    K3_UNROLL
    for (int j = 0; j < N; ++j) sum[i][j] = V::load(out + i * out_stride + j * V::kWidth);
  }
  for (int64_t d = 0; d < depth; ++d) {
    F y[N];
    K3_UNROLL
    for (int j = 0; j < N; ++j) y[j] = V::load(b + d * b_stride + j * V::kWidth);
    K3_UNROLL
    for (int i = 0; i < M; ++i) {
      const F x = V::set(p[i * p_stride + d]);
      K3_UNROLL
      for (int j = 0; j < N; ++j) sum[i][j] = V::fma(x, y[j], sum[i][j]);
    }
  }
  K3_UNROLL
  for (int i = 0; i < M; ++i) {
    K3_UNROLL
    for (int j = 0; j < N; ++j) V::store(out + i * out_stride + j * V::kWidth, sum[i][j]);
  }
}

// out[m] += sum_d p[m][d] b[d], `n` columns (a multiple of kWidth).
template <class V>
K3_VEC_INLINE void add_rows(const float* p, int64_t p_stride, int64_t m, const float* b, int64_t b_stride, int64_t depth,
                            int64_t n, float* out, int64_t out_stride) {
  constexpr int kM = 4;
  constexpr int kN = V::kWidth == 16 ? 4 : 2;
  int64_t j = 0;
  for (; j + kN * V::kWidth <= n; j += kN * V::kWidth) {
    int64_t i = 0;
    for (; i + kM <= m; i += kM)
      add_tile<V, kM, kN>(p + i * p_stride, p_stride, b + j, b_stride, depth, out + i * out_stride + j, out_stride);
    for (; i < m; ++i)
      add_tile<V, 1, kN>(p + i * p_stride, p_stride, b + j, b_stride, depth, out + i * out_stride + j, out_stride);
  }
  for (; j < n; j += V::kWidth) {
    int64_t i = 0;
    for (; i + kM <= m; i += kM)
      add_tile<V, kM, 1>(p + i * p_stride, p_stride, b + j, b_stride, depth, out + i * out_stride + j, out_stride);
    for (; i < m; ++i)
      add_tile<V, 1, 1>(p + i * p_stride, p_stride, b + j, b_stride, depth, out + i * out_stride + j, out_stride);
  }
}

// One block of an online softmax. scores [n] raw (room for a multiple of kWidth) become e^{scale s - m}; *m, *l and the
// weighted sum `acc` [width] are brought to the new maximum.
template <class V>
K3_VEC_INLINE void softmax_block(float* scores, int64_t n, float scale, float* m, float* l, float* acc, int64_t width) {
  using F = typename V::F;
  for (int64_t i = n; i % V::kWidth != 0; ++i) scores[i] = -__builtin_inff();
  F top = V::set(*m);
  for (int64_t i = 0; i < n; i += V::kWidth) {
    const F s = V::mul(V::load(scores + i), V::set(scale));
    V::store(scores + i, s);
    top = V::max(s, top);
  }
  const float next = V::max_lane(top);
  F sum = V::zero();
  for (int64_t i = 0; i < n; i += V::kWidth) {
    const F e = vec_exp<V>(V::sub(V::load(scores + i), V::set(next)));
    V::store(scores + i, e);
    sum = V::add(sum, e);
  }
  if (next != *m) {
    const F shrink = vec_exp<V>(V::sub(V::set(*m), V::set(next)));
    for (int64_t i = 0; i < width; i += V::kWidth) V::store(acc + i, V::mul(V::load(acc + i), shrink));
    *l *= shrink[0];
    *m = next;
  }
  *l += V::sum(sum);
}

}  // namespace k3::ops
