// Purpose:  loops of rows.h over a vector type V and a decoder of four weight rows.
// Shapes:   tiles of 4 output rows by up to V::kTileTokens tokens.
// Units:    none.
// Memory:   accumulators live in registers; see rows.h for the panel.
// Threads:  pure functions.
// Errors:   none.
// Source:   rows.h (order of summation). Tile sizes: kTileTokens * 4 accumulators, kTileTokens inputs and one weight fit the
//           register file (31 of 32 for AVX-512, 16 of 16 for AVX2), and a step of 4 * kTileTokens products needs only
//           kTileTokens + 4 loads, so it is bound by the multiplier.
#pragma once

#include "k3/ops/cpu/vec_math.h"
#include "k3/ops/gemm/rows.h"
#include "k3/ops/int8/int8.h"

namespace k3::ops {

inline constexpr int kTileRows = 4;

// A decoder D of four rows has kVectors (vectors a step), kDense, begin(job, row, k0, columns), and
// load(r, k, w) / load_tail(r, k, n, w) with k relative to k0. Rows past the end repeat the last one.
K3_VEC_INLINE int64_t clamp_row(const RowsJob& job, int64_t row) { return row < job.row_end ? row : job.row_end - 1; }

// Weights stream through once when tokens are few: ask for the same place of the next tile while this one is computed. It is
// further away than hardware prefetchers look, and they stop at page ends. Asking beyond the end of the data is harmless.
K3_VEC_INLINE void prefetch_ahead(const void* p, const RowsJob& job) {
  __builtin_prefetch(static_cast<const char*>(p) + kTileRows * scheme_row_bytes(job.w.scheme, job.w.cols), 0, 2);
}

// Short rows: whole tiles on, but at least 8 KiB.
K3_VEC_INLINE void prefetch_far(const void* p, const RowsJob& job) {
  const int64_t tile = kTileRows * scheme_row_bytes(job.w.scheme, job.w.cols);
  const int64_t ahead = tile >= 8192 ? tile : (8191 + tile) / tile * tile;
  __builtin_prefetch(static_cast<const char*>(p) + ahead, 0, 2);
}

// Rows that are FP32 in memory: a weight of scheme f32, or the panel.
template <class V>
struct DecodeDense {
  static constexpr int kVectors = 1;
  static constexpr bool kDense = true;
  const float* row[kTileRows];

  K3_VEC_INLINE void begin(const RowsJob& job, int64_t first, int64_t k0, int64_t) {
    K3_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      row[r] = static_cast<const float*>(job.w.data) + clamp_row(job, first + r) * job.w.cols + k0;
    }
  }
  K3_VEC_INLINE void prefetch(const RowsJob& job, int r, int64_t k) const { prefetch_ahead(row[r] + k, job); }
  K3_VEC_INLINE void begin_panel(const float* panel, int64_t first) {
    K3_UNROLL
    for (int r = 0; r < kTileRows; ++r) row[r] = panel + (first + r) * kPanelStride;
  }
  K3_VEC_INLINE void load(int r, int64_t k, typename V::F* w) const { w[0] = V::load(row[r] + k); }
  K3_VEC_INLINE void load_tail(int r, int64_t k, int64_t n, typename V::F* w) const { w[0] = V::load(row[r] + k, n); }
};

// Rows of 16-bit numbers; W gives widen(p) and widen(p, n).
template <class V, class W>
struct Decode16 {
  static constexpr int kVectors = 1;
  static constexpr bool kDense = false;
  const uint16_t* row[kTileRows];

  K3_VEC_INLINE void begin(const RowsJob& job, int64_t first, int64_t k0, int64_t) {
    K3_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      row[r] = static_cast<const uint16_t*>(job.w.data) + clamp_row(job, first + r) * job.w.cols + k0;
    }
  }
  K3_VEC_INLINE void prefetch(const RowsJob& job, int r, int64_t k) const { prefetch_ahead(row[r] + k, job); }
  K3_VEC_INLINE void load(int r, int64_t k, typename V::F* w) const { w[0] = W::widen(row[r] + k); }
  K3_VEC_INLINE void load_tail(int r, int64_t k, int64_t n, typename V::F* w) const { w[0] = W::widen(row[r] + k, n); }
};

// Rows of 8-bit codes and their scales: what the decoders share that look up a scale at every group.
struct I8Rows {
  static constexpr bool kDense = false;
  const int8_t* row[kTileRows];
  const uint8_t* scales[kTileRows];

  K3_VEC_INLINE void begin(const RowsJob& job, int64_t first, int64_t k0, int64_t) {
    K3_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t at = clamp_row(job, first + r) * job.w.cols + k0;
      row[r] = static_cast<const int8_t*>(job.w.data) + at;
      scales[r] = job.w.scales + at / kInt8Group;
    }
  }
  K3_VEC_INLINE void prefetch(const RowsJob& job, int r, int64_t k) const { prefetch_far(row[r] + k, job); }
};

// Sums of one tile over one block of columns. x points at column k0 of each token.
template <class V, class D, int NT, bool kStream>
K3_VEC_INLINE void tile(const RowsJob& job, const float* const* x, const D& w, int64_t columns, typename V::Q* sums) {
  using F = typename V::F;
  constexpr int64_t kStep = V::kWidth * D::kVectors;
  F acc[NT][kTileRows];
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    K3_UNROLL
    for (int r = 0; r < kTileRows; ++r) acc[t][r] = V::zero();
  }
  int64_t k = 0;
  for (; k + kStep <= columns; k += kStep) {
    F in[NT][D::kVectors];
    K3_UNROLL
    for (int t = 0; t < NT; ++t) {
      K3_UNROLL
      for (int v = 0; v < D::kVectors; ++v) in[t][v] = V::load(x[t] + k + v * V::kWidth);
    }
    K3_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      F row[D::kVectors];
      if constexpr (kStream) w.prefetch(job, r, k);
      w.load(r, k, row);
      K3_UNROLL
      for (int v = 0; v < D::kVectors; ++v) {
        K3_UNROLL
        for (int t = 0; t < NT; ++t) acc[t][r] = V::fma(in[t][v], row[v], acc[t][r]);
      }
    }
  }
  if constexpr (D::kVectors == 1) {  // rows with scales are whole groups
    if (k < columns) {
      K3_UNROLL
      for (int r = 0; r < kTileRows; ++r) {
        F row[1];
        w.load_tail(r, k, columns - k, row);
        K3_UNROLL
        for (int t = 0; t < NT; ++t) acc[t][r] = V::fma(V::load(x[t] + k, columns - k), row[0], acc[t][r]);
      }
    }
  }
  K3_UNROLL
  for (int t = 0; t < NT; ++t) sums[t] = V::sum4(acc[t][0], acc[t][1], acc[t][2], acc[t][3]);
}

// The same sums of one token with the rows one after another: memory is read as one stream, which is up to half as fast again
// as four streams that share pages. Only for short rows (wide ones would push x out of the first-level cache) and wide
// vectors (a single chain of additions must keep up with memory).
template <class V, class D>
K3_VEC_INLINE typename V::Q tile_in_order(const float* x, const D& w, int64_t columns) {
  using F = typename V::F;
  F acc[kTileRows];
  K3_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    acc[r] = V::zero();
    int64_t k = 0;
    F row[1];
    for (; k + V::kWidth <= columns; k += V::kWidth) {
      w.load(r, k, row);
      acc[r] = V::fma(V::load(x + k), row[0], acc[r]);
    }
    if (k < columns) {
      w.load_tail(r, k, columns - k, row);
      acc[r] = V::fma(V::load(x + k, columns - k), row[0], acc[r]);
    }
  }
  return V::sum4(acc[0], acc[1], acc[2], acc[3]);
}
inline constexpr int64_t kInOrderRowBytes = 4096;

template <class V, class D, int NT, bool kStream>
void tile_store(const RowsJob& job, const D& w, int64_t token, int64_t row, int64_t k0, int64_t columns) {
  const float* x[NT];
  K3_UNROLL
  for (int t = 0; t < NT; ++t) x[t] = job.x[token + t] + k0;
  typename V::Q sums[NT];
  if constexpr (NT == 1 && kStream && D::kVectors == 1 && V::kWidth >= 16) {
    if (columns == job.w.cols && scheme_row_bytes(job.w.scheme, columns) <= kInOrderRowBytes) {
      sums[0] = tile_in_order<V, D>(x[0], w, columns);
    } else {
      tile<V, D, NT, kStream>(job, x, w, columns, sums);
    }
  } else {
    tile<V, D, NT, kStream>(job, x, w, columns, sums);
  }
  const int64_t rows = job.row_end - row;
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    float* y = job.y[token + t] + (row - job.y_origin);
    if (rows >= kTileRows) {
      V::store4(y, k0 == 0 ? sums[t] : V::add4(V::load4(y), sums[t]));
    } else {
      float s[kTileRows];
      V::store4(s, sums[t]);
      for (int64_t r = 0; r < rows; ++r) y[r] = k0 == 0 ? s[r] : y[r] + s[r];
    }
  }
}

template <class V, class D>
inline constexpr int kMaxTokens = D::kDense || V::kTileTokens < 4 ? V::kTileTokens : 4;

template <class V, class D, bool kStream, int NT = kMaxTokens<V, D>>
K3_VEC_INLINE void tile_any(const RowsJob& job, const D& w, int64_t token, int64_t count, int64_t row, int64_t k0,
                            int64_t columns) {
  if constexpr (NT > 1) {
    if (count < NT) return tile_any<V, D, kStream, NT - 1>(job, w, token, count, row, k0, columns);
  }
  tile_store<V, D, NT, kStream>(job, w, token, row, k0, columns);
}

template <class V>
K3_VEC_INLINE int64_t block_columns(int64_t cols, int64_t k0) {
  return cols - k0 < V::kBlock ? cols - k0 : V::kBlock;
}

// Few tokens: weights are decoded in registers and used at once, every row is one stream.
template <class V, class D>
void rows_direct(const RowsJob& job) {
  for (int64_t row = job.row_begin; row < job.row_end; row += kTileRows) {
    for (int64_t k0 = 0; k0 < job.w.cols; k0 += V::kBlock) {
      const int64_t columns = block_columns<V>(job.w.cols, k0);
      D w;
      w.begin(job, row, k0, columns);
      tile_any<V, D, true>(job, w, 0, job.tokens, row, k0, columns);
    }
  }
}

template <class V, class D>
void decode_panel(const RowsJob& job, int64_t row0, int64_t row1, int64_t k0, int64_t columns) {
  constexpr int64_t kStep = V::kWidth * D::kVectors;
  for (int64_t row = row0; row < row1; row += kTileRows) {
    D w;
    w.begin(job, row, k0, columns);
    K3_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      float* out = job.panel + (row - row0 + r) * kPanelStride;
      typename V::F v[D::kVectors];
      int64_t k = 0;
      for (; k + kStep <= columns; k += kStep) {
        w.load(r, k, v);
        K3_UNROLL
        for (int i = 0; i < D::kVectors; ++i) V::store(out + k + i * V::kWidth, v[i]);
      }
      if constexpr (D::kVectors == 1) {
        if (k < columns) {
          w.load_tail(r, k, columns - k, v);
          V::store(out + k, v[0], columns - k);
        }
      }
    }
  }
}

// Many tokens: a block of kPanelRows rows by V::kBlock columns stays in the second-level cache while all tokens
// pass; rows that are not FP32 are widened into the panel first (the same numbers, so the same sums).
template <class V, class D>
void rows_blocked(const RowsJob& job) {
  const int64_t tiles = (job.tokens + V::kTileTokens - 1) / V::kTileTokens;  // of equal size, up to one
  for (int64_t row0 = job.row_begin; row0 < job.row_end; row0 += kPanelRows) {
    const int64_t row1 = row0 + kPanelRows < job.row_end ? row0 + kPanelRows : job.row_end;
    for (int64_t k0 = 0; k0 < job.w.cols; k0 += V::kBlock) {
      const int64_t columns = block_columns<V>(job.w.cols, k0);
      if constexpr (!D::kDense) decode_panel<V, D>(job, row0, row1, k0, columns);
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t token = job.tokens * i / tiles, count = job.tokens * (i + 1) / tiles - token;
        for (int64_t row = row0; row < row1; row += kTileRows) {
          DecodeDense<V> w;
          if constexpr (D::kDense) {
            w.begin(job, row, k0, columns);
          } else {
            w.begin_panel(job.panel, row - row0);
          }
          tile_any<V, DecodeDense<V>, false>(job, w, token, count, row, k0, columns);
        }
      }
    }
  }
}

template <class V, class D>
void rows_with(const RowsJob& job) {
  if (job.tokens <= kMaxTokens<V, D>) return rows_direct<V, D>(job);
  rows_blocked<V, D>(job);
}

// Decoders of V: V::Bf16 and V::F16 (widen), V::Mx, V::I8.
template <class V>
K3_VEC_INLINE void rows_any(const RowsJob& job) {
  if (job.tokens == 0 || job.row_begin >= job.row_end) return;
  switch (job.w.scheme) {
    case Scheme::f32: return rows_with<V, DecodeDense<V>>(job);
    case Scheme::bf16: return rows_with<V, Decode16<V, typename V::Bf16>>(job);
    case Scheme::f16: return rows_with<V, Decode16<V, typename V::F16>>(job);
    case Scheme::mxfp4: return rows_with<V, typename V::Mx>(job);
    case Scheme::i8: return rows_with<V, typename V::I8>(job);
    case Scheme::f64: return;  // products of training's reference go elsewhere (matmul.h)
  }
}

// ---- transposed product: columns of the output are lanes, one chain over the rows of the weight ----

template <class V>
struct LoadF32 {
  using Element = float;
  static K3_VEC_INLINE typename V::F widen(const float* p) { return V::load(p); }
  static K3_VEC_INLINE typename V::F widen(const float* p, int64_t n) { return V::load(p, n); }
};

template <class V, class W, int NT, int NV>
K3_VEC_INLINE void cols_tile(const ColsJob& job, int64_t token, int64_t col, int64_t lanes) {
  const auto* w = static_cast<const typename W::Element*>(job.w.data) + col;
  typename V::F acc[NT][NV];
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    K3_UNROLL
    for (int v = 0; v < NV; ++v) acc[t][v] = V::zero();
  }
  for (int64_t o = 0; o < job.w.rows; ++o, w += job.w.cols) {
    typename V::F row[NV];
    K3_UNROLL
    for (int v = 0; v < NV; ++v) {
      row[v] = lanes == V::kWidth ? W::widen(w + v * V::kWidth) : W::widen(w + v * V::kWidth, lanes);
    }
    K3_UNROLL
    for (int t = 0; t < NT; ++t) {
      const typename V::F x = V::set(job.x[token + t][o]);
      K3_UNROLL
      for (int v = 0; v < NV; ++v) acc[t][v] = V::fma(x, row[v], acc[t][v]);
    }
  }
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    K3_UNROLL
    for (int v = 0; v < NV; ++v) {
      float* y = job.y[token + t] + col + v * V::kWidth;
      if (lanes == V::kWidth) {
        V::store(y, acc[t][v]);
      } else {
        V::store(y, acc[t][v], lanes);
      }
    }
  }
}

template <class V, class W, int NT>
void cols_token_tile(const ColsJob& job, int64_t token) {
  int64_t col = job.col_begin;
  for (; col + 4 * V::kWidth <= job.col_end; col += 4 * V::kWidth) cols_tile<V, W, NT, 4>(job, token, col, V::kWidth);
  for (; col + V::kWidth <= job.col_end; col += V::kWidth) cols_tile<V, W, NT, 1>(job, token, col, V::kWidth);
  if (col < job.col_end) cols_tile<V, W, NT, 1>(job, token, col, job.col_end - col);
}

template <class V, class W>
void cols_with(const ColsJob& job) {
  int64_t t = 0;
  for (; t + 2 <= job.tokens; t += 2) cols_token_tile<V, W, 2>(job, t);
  if (t < job.tokens) cols_token_tile<V, W, 1>(job, t);
}

template <class V>
K3_VEC_INLINE void cols_any(const ColsJob& job) {
  switch (job.w.scheme) {
    case Scheme::f32: return cols_with<V, LoadF32<V>>(job);
    case Scheme::bf16: return cols_with<V, typename V::Bf16>(job);
    case Scheme::f16: return cols_with<V, typename V::F16>(job);
    case Scheme::f64:
    case Scheme::mxfp4:
    case Scheme::i8: return;  // refused by the caller
  }
}

}  // namespace k3::ops
