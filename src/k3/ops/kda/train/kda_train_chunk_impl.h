// Purpose:  one chunk of the recurrence, and the forward of a head of a sequence.
// Shapes:   kda_train_inputs_impl.h.
// Units:    kda_train_kernel.h.
// Memory:   kda_train_kernel.h.
// Threads:  kda_train_kernel.h.
// Errors:   none.
// Source:   kernels.md 2. The products e^{G_r - G_i} are built pairwise from factors that are at most 1, for bounded and
//           unbounded gates alike. (I + L) u = beta (v - Kp S0) is solved by forward substitution, no inverse is formed.
#pragma once

#include "k3/ops/kda/train/kda_train_inputs_impl.h"

namespace k3::ops {

// Keys and queries of rows [row, row + kRows) with the keys of the kWidth tokens from `column` on. Lane: that of token `row`, or
// -1 when all these tokens are older. w [padded, kWidth]: the keys with the decay up to row - 1, kept between calls.
template <class V, int Lane>
K3_VEC_INLINE void train_pair_rows(const KdaTrainChunk& c, int64_t padded, int64_t row, int64_t column, float* w) {
  using F = typename V::F;
  constexpr int kRows = static_cast<int>(V::kWidth / 2);
  F keys[kRows], queries[kRows];
  K3_UNROLL
  for (int r = 0; r < kRows; ++r) keys[r] = queries[r] = V::zero();
  const float *kn = c.kn + row * padded, *qs = c.qs + row * padded, *decay = c.decay + row * padded;
  for (int64_t j = 0; j < padded; ++j) {
    F x = Lane == 0 ? V::zero() : V::load(w + j * V::kWidth);
    K3_UNROLL
    for (int r = 0; r < kRows; ++r) {
      x = V::mul(x, V::set(decay[r * padded + j]));
      if constexpr (Lane >= 0) x = V::with_lane(x, Lane + r, kn[r * padded + j]);
      keys[r] = V::fma(x, V::set(kn[r * padded + j]), keys[r]);
      queries[r] = V::fma(x, V::set(qs[r * padded + j]), queries[r]);
    }
    V::store(w + j * V::kWidth, x);
  }
  K3_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = (row + r) * kTrainChunk + column;
    V::store(c.l + at, V::mul(keys[r], V::set(c.beta[row + r])));
    V::store(c.p + at, queries[r]);
  }
}

// L below the diagonal and P on it and below; other entries are not used.
template <class V>
void train_pairs(const KdaTrainChunk& c, int64_t padded, float* w) {
  constexpr int kHalf = static_cast<int>(V::kWidth / 2);
  for (int64_t column = 0; column < kTrainChunk; column += V::kWidth) {
    train_pair_rows<V, 0>(c, padded, column, column, w);
    train_pair_rows<V, kHalf>(c, padded, column + kHalf, column, w);
    for (int64_t r = column + V::kWidth; r < kTrainChunk; r += kHalf) train_pair_rows<V, -1>(c, padded, r, column, w);
  }
}

// u and o of one vector of value columns; read_q becomes o.
template <class V>
K3_VEC_INLINE void train_solve_columns(const KdaTrainChunk& c, int64_t padded, int64_t j) {
  using F = typename V::F;
  constexpr int kC = kTrainChunk;
  F u[kC];
  K3_UNROLL
  for (int r = 0; r < kC; ++r) {
    u[r] = V::mul(V::set(c.beta[r]), V::sub(V::load(c.v + r * padded + j), V::load(c.read_k + r * padded + j)));
  }
  K3_UNROLL
  for (int i = 0; i < kC; ++i) {
    K3_UNROLL
    for (int r = i + 1; r < kC; ++r) u[r] = V::fnma(V::set(c.l[r * kC + i]), u[i], u[r]);
    V::store(c.u + i * padded + j, u[i]);
  }
  K3_UNROLL
  for (int r = 0; r < kC; ++r) {
    F o = V::load(c.read_q + r * padded + j);
    K3_UNROLL
    for (int i = 0; i <= r; ++i) o = V::fma(V::set(c.p[r * kC + i]), u[i], o);
    V::store(c.read_q + r * padded + j, o);
  }
}

// c.state is the state before the chunk and stays.
template <class V>
void train_chunk_forward(const KdaTrainRun& run, const KdaTrainChunk& c, const float* taps, int64_t padded) {
  train_inputs<V>(run, c, taps, padded);
  train_pairs<V>(c, padded, c.read_q);  // free until the state is read
  train_product<V>({c.qp, padded, 1, padded}, 2 * kTrainChunk, c.state, padded, c.read_q);
  for (int64_t j = 0; j < padded; j += V::kWidth) train_solve_columns<V>(c, padded, j);
}

template <class V>
void train_next_state(const KdaTrainChunk& c, int64_t padded, float* state) {
  train_product<V>({c.ke, 1, padded, kTrainChunk}, padded, c.u, padded, state, {c.keep, c.factor});
}

// V-first [D, D] -> K-first [padded, padded], and back. Null: zeros.
inline void train_state_in(const float* from, int64_t dim, int64_t padded, float* to) {
  for (int64_t k = 0; k < padded; ++k) {
    for (int64_t v = 0; v < padded; ++v) to[k * padded + v] = from != nullptr && k < dim && v < dim ? from[v * dim + k] : 0.0F;
  }
}
inline void train_state_out(const float* from, int64_t dim, int64_t padded, float* to) {
  for (int64_t v = 0; v < dim; ++v) {
    for (int64_t k = 0; k < dim; ++k) to[v * dim + k] = from[k * padded + v];
  }
}

template <class V>
K3_VEC_INLINE void train_copy(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += V::kWidth) V::store(to + i, V::load(from + i));
}

template <class V>
K3_VEC_INLINE float train_out_factor(const float* o, int64_t padded, int64_t dim, float eps) {
  typename V::F squares = V::zero();
  for (int64_t j = 0; j < padded; j += V::kWidth) {
    const typename V::F x = V::load(o + j);
    squares = V::fma(x, x, squares);
  }
  return 1.0F / __builtin_sqrtf(V::sum(squares) / static_cast<float>(dim) + eps);
}

template <class V>
void train_outputs(const KdaTrainRun& run, const KdaTrainChunk& c, int64_t padded) {
  for (int64_t r = 0; r < c.tokens; ++r) {
    const float* o = c.read_q + r * padded;
    const typename V::F factor = V::set(train_out_factor<V>(o, padded, run.dim, run.eps));
    const int64_t at = (c.first + r) * run.row_stride;
    for (int64_t j = 0; j < run.dim; j += V::kWidth) {
      const int64_t left = run.dim - j;
      const typename V::F n = V::mul(V::mul(V::load(o + j), factor), train_load<V>(run.norm + j, left));
      train_store<V>(run.y + at + j, V::mul(n, vec_sigmoid<V>(train_load<V>(run.gate + at + j, left))), left);
    }
  }
}

template <class V>
void kda_train_forward_run(const KdaTrainRun& run) {
  const int64_t padded = kda_train_padded(run.dim);
  float* at = run.scratch;
  KdaTrainChunk c = train_chunk(at, padded);
  float* const taps = at;
  train_taps(run, padded, taps);
  train_state_in(run.initial, run.dim, padded, c.state);
  for (c.first = 0; c.first < run.tokens; c.first += kTrainChunk) {
    const int64_t chunk = c.first / kTrainChunk, left = run.tokens - c.first;
    c.tokens = left < kTrainChunk ? left : kTrainChunk;
    if (run.kept != nullptr && chunk % kTrainBlockChunks == 0) {
      train_copy<V>(c.state, padded * padded, run.kept + chunk / kTrainBlockChunks * run.kept_stride);
    }
    train_chunk_forward<V>(run, c, taps, padded);
    train_outputs<V>(run, c, padded);
    train_next_state<V>(c, padded, c.state);
  }
  if (run.final != nullptr) train_state_out(c.state, run.dim, padded, run.final);
}

}  // namespace k3::ops
