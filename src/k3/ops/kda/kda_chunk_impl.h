// Purpose:  the chunk form of KDA over a vector type V of lanes.h.
// Shapes:   C = 16 rows; [D, C] arrays have the tokens of the chunk in the lanes ("transposed").
// Units:    decay as natural logarithm.
// Memory:   everything in the scratch of KdaPrepared.
// Threads:  pure functions.
// Errors:   none.
// Source:   kernels.md 2. Every exponent is <= 0 here, for bounded and unbounded gates alike: the products
//           e^{G_r - G_i} of the C x C matrices are built pairwise by multiplying with e^{g_r} row after row
//           (w_i <- w_i e^{g_r}, then w_r = kn_r), which needs no e^{-G}, no division and no further exp.
//           A row below the last token has g = 0, beta = 0 and kn = 0 and changes nothing.
#pragma once

#include "k3/ops/kda/kda_kernel_impl.h"

namespace k3::ops {

struct KdaChunk {
  float *decay, *kp, *qp, *ke, *v, *w;   // [C, padded]: e^g, kn e^G, scale qn e^G, kn e^{G_C - G}, values; w [D, C]
  float *kp_t, *qp_t, *v_t, *u_t, *o_t;  // [padded, C]
  float *keep, *factor;                  // [padded], e^{G_C}
  float *l, *p_rows, *p_columns, *t_columns, *beta, *d_t;  // C x C; [C]; [8, C]
};

K3_VEC_INLINE KdaChunk kda_chunk_scratch(float* s, int64_t padded) {
  const int64_t n = kKdaChunk * padded, m = kKdaChunk * kKdaChunk;
  KdaChunk c{};
  for (float** p : {&c.decay, &c.kp, &c.qp, &c.ke, &c.v, &c.w, &c.kp_t, &c.qp_t, &c.v_t, &c.u_t, &c.o_t}) {
    *p = s;
    s += n;
  }
  for (float** p : {&c.keep, &c.factor}) {
    *p = s;
    s += padded;
  }
  for (float** p : {&c.l, &c.p_rows, &c.p_columns, &c.t_columns, &c.beta, &c.d_t}) {
    *p = s;
    s += m;
  }
  return c;
}

// [C, padded] -> [padded, C]
template <class V>
K3_VEC_INLINE void chunk_transpose(const float* from, int64_t from_stride, int64_t columns, float* to) {
  for (int64_t j = 0; j < columns; j += V::kWidth) {
    for (int64_t r = 0; r < kKdaChunk; r += V::kWidth) {
      V::transpose(from + r * from_stride + j, from_stride, to + j * kKdaChunk + r, kKdaChunk);
    }
  }
}

template <class V>
K3_VEC_INLINE void chunk_factors(const KdaPrepared& p, const KdaChunk& c) {
  using F = typename V::F;
  for (int64_t j = 0; j < p.padded; j += V::kWidth) {
    F sum = V::zero();
    for (int64_t r = 0; r < kKdaChunk; ++r) {
      const int64_t at = r * p.padded + j;
      if (r >= p.tokens) {
        V::store(c.decay + at, V::set(1.0F));
        for (float* rows : {c.kp, c.qp, c.ke}) V::store(rows + at, V::zero());
        continue;
      }
      const F g = V::load(p.g + at);
      sum = V::add(sum, g);
      const F e = vec_exp<V>(sum);
      V::store(c.decay + at, vec_exp<V>(g));
      V::store(c.kp + at, V::mul(V::load(p.kn + at), e));
      V::store(c.qp + at, V::mul(V::load(p.qn + at), e));
    }
    // G_C - G_r summed from the end, so that it is exact where it is small.
    F after = V::zero();
    for (int64_t r = p.tokens; r-- > 0;) {
      const int64_t at = r * p.padded + j;
      V::store(c.ke + at, V::mul(V::load(p.kn + at), vec_exp<V>(after)));
      after = V::add(after, V::load(p.g + at));
    }
    const Decay<V> all = decay_of<V>(after);
    V::store(c.keep + j, all.keep);
    V::store(c.factor + j, all.factor);
  }
}

// Rows [row, row + kWidth / 2) of kn_r . w_i and qn_r . w_i for the kWidth tokens i from `column` on. Lane: the lane
// of token `row`, or -1 when all of these tokens are older.
template <class V, int Lane>
K3_VEC_INLINE void chunk_pair_rows(const KdaPrepared& p, const KdaChunk& c, int64_t row, int64_t column) {
  using F = typename V::F;
  constexpr int kRows = static_cast<int>(V::kWidth / 2);
  F kk[kRows], qk[kRows];
  K3_UNROLL
  for (int r = 0; r < kRows; ++r) kk[r] = qk[r] = V::zero();
  const float *kn = p.kn + row * p.padded, *qn = p.qn + row * p.padded, *decay = c.decay + row * p.padded;
  for (int64_t j = 0; j < p.dim; ++j) {
    F w = Lane == 0 ? V::zero() : V::load(c.w + j * V::kWidth);
    K3_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float k = kn[r * p.padded + j];
      w = V::mul(w, V::set(decay[r * p.padded + j]));
      if constexpr (Lane >= 0) w = V::with_lane(w, Lane + r, k);
      kk[r] = V::fma(w, V::set(k), kk[r]);
      qk[r] = V::fma(w, V::set(qn[r * p.padded + j]), qk[r]);
    }
    V::store(c.w + j * V::kWidth, w);
  }
  K3_UNROLL
  for (int r = 0; r < kRows; ++r) {
    V::store(c.l + (row + r) * kKdaChunk + column, V::mul(kk[r], V::set(c.beta[row + r])));
    V::store(c.p_rows + (row + r) * kKdaChunk + column, qk[r]);
  }
}

// L (below the diagonal; other entries are not used) and P (on and below; zero above).
template <class V>
K3_VEC_INLINE void chunk_pairs(const KdaPrepared& p, const KdaChunk& c) {
  constexpr int kHalf = static_cast<int>(V::kWidth / 2);
  for (int64_t column = 0; column < kKdaChunk; column += V::kWidth) {
    for (int64_t r = 0; r < column; ++r) V::store(c.p_rows + r * kKdaChunk + column, V::zero());
    chunk_pair_rows<V, 0>(p, c, column, column);
    chunk_pair_rows<V, kHalf>(p, c, column + kHalf, column);
    for (int64_t r = column + V::kWidth; r < kKdaChunk; r += kHalf) chunk_pair_rows<V, -1>(p, c, r, column);
  }
  chunk_transpose<V>(c.p_rows, kKdaChunk, kKdaChunk, c.p_columns);
}

// T = (I + L)^-1 by columns: T = I - T L gives T_:i = e_i - sum_{r > i} T_:r L_ri, last column first.
template <class V>
K3_VEC_INLINE void chunk_inverse(const KdaChunk& c) {
  constexpr int64_t kC = kKdaChunk;
  constexpr int kParts = static_cast<int>(kC / V::kWidth);
  for (int64_t i = kC; i-- > 0;) {
    typename V::F t[kParts];
    K3_UNROLL
    for (int h = 0; h < kParts; ++h) {
      t[h] = i / V::kWidth == h ? V::with_lane(V::zero(), i % V::kWidth, 1.0F) : V::zero();
    }
    for (int64_t r = i + 1; r < kC; ++r) {
      K3_UNROLL
      for (int h = 0; h < kParts; ++h) {
        t[h] = V::fnma(V::set(c.l[r * kC + i]), V::load(c.t_columns + r * kC + h * V::kWidth), t[h]);
      }
    }
    K3_UNROLL
    for (int h = 0; h < kParts; ++h) V::store(c.t_columns + i * kC + h * V::kWidth, t[h]);
  }
}

// sum += sum_i x_i columns_i
template <class V, int Parts>
K3_VEC_INLINE void add_product(const float* x, const float* columns, typename V::F* sum) {
  for (int64_t i = 0; i < kKdaChunk; ++i) {
    K3_UNROLL
    for (int h = 0; h < Parts; ++h) {
      sum[h] = V::fma(V::set(x[i]), V::load(columns + i * kKdaChunk + h * V::kWidth), sum[h]);
    }
  }
}

// R value rows of U = T Diag(beta) (V - Kp S0) and O = Qp S0 + P U, transposed.
template <class V, int R>
K3_VEC_INLINE void chunk_values(const KdaPrepared& p, const KdaChunk& c, int64_t row) {
  using F = typename V::F;
  constexpr int64_t kC = kKdaChunk;
  constexpr int kParts = static_cast<int>(kC / V::kWidth);
  F xk[R][kParts], xq[R][kParts];
  K3_UNROLL
  for (int r = 0; r < R; ++r) {
    K3_UNROLL
    for (int h = 0; h < kParts; ++h) xk[r][h] = xq[r][h] = V::zero();
  }
  const float* state = p.state + row * p.dim;
  for (int64_t j = 0; j < p.dim; ++j) {
    F s[R];
    K3_UNROLL
    for (int r = 0; r < R; ++r) s[r] = V::set(state[r * p.dim + j]);
    K3_UNROLL
    for (int h = 0; h < kParts; ++h) {
      const F kp = V::load(c.kp_t + j * kC + h * V::kWidth), qp = V::load(c.qp_t + j * kC + h * V::kWidth);
      K3_UNROLL
      for (int r = 0; r < R; ++r) {
        xk[r][h] = V::fma(s[r], kp, xk[r][h]);
        xq[r][h] = V::fma(s[r], qp, xq[r][h]);
      }
    }
  }
  K3_UNROLL
  for (int r = 0; r < R; ++r) {
    float* u_t = c.u_t + (row + r) * kC;
    F u[kParts];
    K3_UNROLL
    for (int h = 0; h < kParts; ++h) {
      const F delta = V::sub(V::load(c.v_t + (row + r) * kC + h * V::kWidth), xk[r][h]);
      V::store(c.d_t + r * kC + h * V::kWidth, V::mul(V::load(c.beta + h * V::kWidth), delta));
      u[h] = V::zero();
    }
    add_product<V, kParts>(c.d_t + r * kC, c.t_columns, u);
    K3_UNROLL
    for (int h = 0; h < kParts; ++h) V::store(u_t + h * V::kWidth, u[h]);
    add_product<V, kParts>(u_t, c.p_columns, xq[r]);
    K3_UNROLL
    for (int h = 0; h < kParts; ++h) V::store(c.o_t + (row + r) * kC + h * V::kWidth, xq[r][h]);
  }
}

// S <- Diag(E) S + Ke^T U for R value rows and N vectors of key columns from `column` on; `left` counts the numbers of
// the last vector when it is not full.
template <class V, int R, int N>
K3_VEC_INLINE void chunk_state(const KdaPrepared& p, const KdaChunk& c, int64_t row, int64_t column, int64_t left) {
  using F = typename V::F;
  F x[R][N];
  K3_UNROLL
  for (int r = 0; r < R; ++r) {
    K3_UNROLL
    for (int n = 0; n < N; ++n) {
      const int64_t j = column + n * V::kWidth;
      const float* at = p.state + (row + r) * p.dim + j;
      const F s = left >= V::kWidth ? V::load(at) : V::load(at, left);
      x[r][n] = V::fma(s, V::load(c.factor + j), V::mul(s, V::load(c.keep + j)));
    }
  }
  for (int64_t i = 0; i < p.tokens; ++i) {
    F ke[N];
    K3_UNROLL
    for (int n = 0; n < N; ++n) ke[n] = V::load(c.ke + i * p.padded + column + n * V::kWidth);
    K3_UNROLL
    for (int r = 0; r < R; ++r) {
      const F u = V::set(c.u_t[(row + r) * kKdaChunk + i]);
      K3_UNROLL
      for (int n = 0; n < N; ++n) x[r][n] = V::fma(u, ke[n], x[r][n]);
    }
  }
  K3_UNROLL
  for (int r = 0; r < R; ++r) {
    K3_UNROLL
    for (int n = 0; n < N; ++n) {
      float* at = p.state + (row + r) * p.dim + column + n * V::kWidth;
      left >= V::kWidth ? V::store(at, x[r][n]) : V::store(at, x[r][n], left);
    }
  }
}

template <class V, int R>
K3_VEC_INLINE void chunk_state_rows(const KdaPrepared& p, const KdaChunk& c, int64_t row) {
  constexpr int kN = V::kWidth == 16 ? 4 : 2;
  int64_t column = 0;
  for (; column + kN * V::kWidth <= p.dim; column += kN * V::kWidth) chunk_state<V, R, kN>(p, c, row, column, V::kWidth);
  for (; column < p.dim; column += V::kWidth) chunk_state<V, R, 1>(p, c, row, column, p.dim - column);
}

// Values in, outputs out: straight from and to the tensors where a whole tile fits, through a padded copy otherwise.
template <class V>
K3_VEC_INLINE void chunk_read_values(const KdaPrepared& p, const KdaChunk& c) {
  if (p.tokens == kKdaChunk && p.dim % V::kWidth == 0) return chunk_transpose<V>(p.v, p.row_stride, p.dim, c.v_t);
  for (int64_t r = 0; r < kKdaChunk; ++r) {
    for (int64_t j = 0; j < p.padded; ++j) {
      c.v[r * p.padded + j] = r < p.tokens && j < p.dim ? p.v[r * p.row_stride + j] : 0.0F;
    }
  }
  chunk_transpose<V>(c.v, p.padded, p.padded, c.v_t);
}

template <class V>
K3_VEC_INLINE void chunk_write_outputs(const KdaPrepared& p, const KdaChunk& c) {
  if (p.tokens == kKdaChunk && p.dim % V::kWidth == 0) {
    for (int64_t j = 0; j < p.dim; j += V::kWidth) {
      for (int64_t r = 0; r < kKdaChunk; r += V::kWidth) {
        V::transpose(c.o_t + j * kKdaChunk + r, kKdaChunk, p.out + r * p.row_stride + j, p.row_stride);
      }
    }
    return;
  }
  for (int64_t r = 0; r < p.tokens; ++r) {
    for (int64_t j = 0; j < p.dim; ++j) p.out[r * p.row_stride + j] = c.o_t[j * kKdaChunk + r];
  }
}

// Rows below the last token read as zero keys and queries (the caller's buffers may hold older tokens there).
K3_VEC_INLINE KdaPrepared chunk_whole(const KdaPrepared& p, float* kn, float* qn) {
  KdaPrepared full = p;
  if (p.tokens == kKdaChunk) return full;
  for (int64_t i = 0; i < kKdaChunk * p.padded; ++i) {
    const bool real = i < p.tokens * p.padded;
    kn[i] = real ? p.kn[i] : 0.0F;
    qn[i] = real ? p.qn[i] : 0.0F;
  }
  full.kn = kn;
  full.qn = qn;
  return full;
}

template <class V>
void kda_chunk_prepared(const KdaPrepared& p) {
  const KdaChunk c = kda_chunk_scratch(p.scratch, p.padded);
  const KdaPrepared full = chunk_whole(p, c.v_t, c.u_t);  // both free until the values are read
  for (int64_t r = 0; r < kKdaChunk; ++r) c.beta[r] = r < p.tokens ? p.beta[r] : 0.0F;
  chunk_factors<V>(full, c);
  chunk_pairs<V>(full, c);
  chunk_inverse<V>(c);
  chunk_transpose<V>(c.kp, p.padded, p.padded, c.kp_t);
  chunk_transpose<V>(c.qp, p.padded, p.padded, c.qp_t);
  chunk_read_values<V>(p, c);
  constexpr int kRows = V::kWidth == 16 ? 8 : V::kWidth == 8 ? 2 : 1;
  int64_t row = 0;
  for (; row + kRows <= p.dim; row += kRows) chunk_values<V, kRows>(p, c, row);
  for (; row < p.dim; ++row) chunk_values<V, 1>(p, c, row);
  for (row = 0; row + 4 <= p.dim; row += 4) chunk_state_rows<V, 4>(p, c, row);
  for (; row < p.dim; ++row) chunk_state_rows<V, 1>(p, c, row);
  chunk_write_outputs<V>(p, c);
}

template <class V>
constexpr KdaKernels kda_kernels() {
  return {kda_run<V, kda_recurrent_prepared<V>>, kda_run<V, kda_chunk_prepared<V>>, kda_recurrent_prepared<V>,
          kda_chunk_prepared<V>};
}

}  // namespace k3::ops
