// Purpose:  preparation of the inputs and the recurrent form, over a vector type V of lanes.h.
// Shapes:   kda_kernel.h.
// Units:    kda_kernel.h.
// Memory:   kda_kernel.h.
// Threads:  kda_kernel.h.
// Errors:   none.
// Source:   kernels.md 1 (inputs), 4 step 3 (one pass over a decayed value row).
#pragma once

#include "k3/ops/cpu/lanes.h"
#include "k3/ops/kda/kda_kernel.h"

namespace k3::ops {

constexpr float kL2Eps = 1e-6F;  // added to the sum of squares, not to the mean

// Rows of one block of at most 16 tokens; [16, padded] each.
struct KdaBlock {
  float* kn;
  float* qn;
  float* g;
  float* beta;
  float* rest;  // scratch that is still free
};

K3_VEC_INLINE KdaBlock kda_block(float* scratch, int64_t padded) {
  const int64_t rows = kKdaChunk * padded;
  return {scratch, scratch + rows, scratch + 2 * rows, scratch + 3 * rows, scratch + 3 * rows + kKdaChunk};
}

template <class V>
K3_VEC_INLINE typename V::F load_part(const float* p, int64_t left) {
  return left >= V::kWidth ? V::load(p) : V::load(p, left);
}

// out = x / sqrt(sum x^2 + eps) * scale, padded with zeros.
template <class V>
K3_VEC_INLINE void l2_normalise(const float* x, int64_t dim, int64_t padded, float scale, float* out) {
  typename V::F s = V::zero();
  for (int64_t j = 0; j < dim; j += V::kWidth) {
    const typename V::F a = load_part<V>(x + j, dim - j);
    s = V::fma(a, a, s);
  }
  const float factor = scale / __builtin_sqrtf(V::sum(s) + kL2Eps);
  for (int64_t j = 0; j < padded; j += V::kWidth) {
    V::store(out + j, j < dim ? V::mul(load_part<V>(x + j, dim - j), V::set(factor)) : V::zero());
  }
}

template <class V>
void kda_prepare(const KdaRun& run, int64_t first, int64_t count, const KdaBlock& block) {
  using F = typename V::F;
  const int64_t dim = run.dim, padded = kda_padded(dim);
  for (int64_t r = 0; r < count; ++r) {
    const int64_t at = (first + r) * run.row_stride;
    l2_normalise<V>(run.k + at, dim, padded, 1.0F, block.kn + r * padded);
    l2_normalise<V>(run.q + at, dim, padded, run.scale, block.qn + r * padded);
    for (int64_t j = 0; j < padded; j += V::kWidth) {
      F g = V::zero();
      if (j < dim) {
        const F x = V::add(load_part<V>(run.z + at + j, dim - j), load_part<V>(run.dt_bias + j, dim - j));
        g = run.bounded ? V::mul(V::set(run.lower_bound), vec_sigmoid<V>(V::mul(V::set(run.a), x)))
                        : V::mul(V::set(-run.a), vec_softplus<V>(x));
      }
      V::store(block.g + r * padded + j, g);
    }
    block.beta[r] = vec_sigmoid<V>(V::set(run.b[(first + r) * run.beta_stride]))[0];
  }
}

// Decay factors and scale * kn . qn of each token.
struct KdaSteps {
  float* keep;
  float* factor;
  float* kq;
  float* row;  // [padded]
};

template <class V>
K3_VEC_INLINE KdaSteps kda_steps(const KdaPrepared& p) {
  const int64_t rows = kKdaChunk * p.padded;
  const KdaSteps s{p.scratch, p.scratch + rows, p.scratch + 2 * rows, p.scratch + 2 * rows + kKdaChunk};
  for (int64_t t = 0; t < p.tokens; ++t) {
    typename V::F kq = V::zero();
    for (int64_t j = t * p.padded; j < (t + 1) * p.padded; j += V::kWidth) {
      const Decay<V> decay = decay_of<V>(V::load(p.g + j));
      V::store(s.keep + j, decay.keep);
      V::store(s.factor + j, decay.factor);
      kq = V::fma(V::load(p.kn + j), V::load(p.qn + j), kq);
    }
    s.kq[t] = V::sum(kq);
  }
  return s;
}

// R value rows of NV vectors stay in registers while all tokens of the block pass. Per token and row:
// x <- decay x; a = kn . x; b = qn . x; u = beta (v - a); o = b + u (kn . qn); x <- x + u kn.
template <class V, int NV, int R>
K3_VEC_INLINE void kda_rows(const KdaPrepared& p, const KdaSteps& s, int64_t first_row) {
  using F = typename V::F;
  constexpr int64_t kW = V::kWidth;
  F x[R][NV];
  K3_UNROLL
  for (int r = 0; r < R; ++r) {
    K3_UNROLL
    for (int j = 0; j < NV; ++j) x[r][j] = V::load(p.state + (first_row + r) * p.dim + j * kW);
  }
  for (int64_t t = 0; t < p.tokens; ++t) {
    const float *kn = p.kn + t * p.padded, *qn = p.qn + t * p.padded;
    const float *keep = s.keep + t * p.padded, *factor = s.factor + t * p.padded;
    F a[2][R], b[2][R];  // two chains each, for latency
    K3_UNROLL
    for (int r = 0; r < R; ++r) a[0][r] = a[1][r] = b[0][r] = b[1][r] = V::zero();
    K3_UNROLL
    for (int j = 0; j < NV; ++j) {
      K3_UNROLL
      for (int r = 0; r < R; ++r) {
        x[r][j] = V::fma(x[r][j], V::load(factor + j * kW), V::mul(x[r][j], V::load(keep + j * kW)));
        a[j & 1][r] = V::fma(x[r][j], V::load(kn + j * kW), a[j & 1][r]);
        b[j & 1][r] = V::fma(x[r][j], V::load(qn + j * kW), b[j & 1][r]);
      }
    }
    float read[2 * R];  // kn . x and qn . x of each row
    if constexpr (R % 2 == 0) {
      K3_UNROLL
      for (int r = 0; r < R; r += 2) {
        V::sum4(V::add(a[0][r], a[1][r]), V::add(b[0][r], b[1][r]), V::add(a[0][r + 1], a[1][r + 1]),
                V::add(b[0][r + 1], b[1][r + 1]), read + 2 * r);
      }
    } else {
      K3_UNROLL
      for (int r = 0; r < R; ++r) {
        read[2 * r] = V::sum(V::add(a[0][r], a[1][r]));
        read[2 * r + 1] = V::sum(V::add(b[0][r], b[1][r]));
      }
    }
    K3_UNROLL
    for (int r = 0; r < R; ++r) {
      const int64_t at = t * p.row_stride + first_row + r;
      const float u = p.beta[t] * (p.v[at] - read[2 * r]);
      p.out[at] = read[2 * r + 1] + u * s.kq[t];
      K3_UNROLL
      for (int j = 0; j < NV; ++j) x[r][j] = V::fma(V::set(u), V::load(kn + j * kW), x[r][j]);
    }
  }
  K3_UNROLL
  for (int r = 0; r < R; ++r) {
    K3_UNROLL
    for (int j = 0; j < NV; ++j) V::store(p.state + (first_row + r) * p.dim + j * kW, x[r][j]);
  }
}

template <class V, int NV, int R>
void kda_rows_all(const KdaPrepared& p, const KdaSteps& s) {
  static_assert(NV * V::kWidth % R == 0);
  for (int64_t row = 0; row < p.dim; row += R) kda_rows<V, NV, R>(p, s, row);
}

// The same for any width, the row held in memory.
template <class V>
void kda_rows_any(const KdaPrepared& p, const KdaSteps& s) {
  using F = typename V::F;
  float* x = s.row;
  for (int64_t j = 0; j < p.padded; ++j) x[j] = 0;
  for (int64_t row = 0; row < p.dim; ++row) {
    float* state = p.state + row * p.dim;
    for (int64_t j = 0; j < p.dim; ++j) x[j] = state[j];
    for (int64_t t = 0; t < p.tokens; ++t) {
      const int64_t base = t * p.padded;
      F a = V::zero(), b = V::zero();
      for (int64_t j = 0; j < p.padded; j += V::kWidth) {
        F y = V::load(x + j);
        y = V::fma(y, V::load(s.factor + base + j), V::mul(y, V::load(s.keep + base + j)));
        a = V::fma(y, V::load(p.kn + base + j), a);
        b = V::fma(y, V::load(p.qn + base + j), b);
        V::store(x + j, y);
      }
      const int64_t at = t * p.row_stride + row;
      const float u = p.beta[t] * (p.v[at] - V::sum(a));
      p.out[at] = V::sum(b) + u * s.kq[t];
      for (int64_t j = 0; j < p.padded; j += V::kWidth) {
        V::store(x + j, V::fma(V::set(u), V::load(p.kn + base + j), V::load(x + j)));
      }
    }
    for (int64_t j = 0; j < p.dim; ++j) state[j] = x[j];
  }
}

template <class V>
void kda_recurrent_prepared(const KdaPrepared& p) {
  const KdaSteps s = kda_steps<V>(p);
  // Which code runs depends on D alone, so a token's arithmetic does too; the number of rows at a time changes no
  // result (four hide the latency of the two dot products; a single token streams and needs only two).
  if constexpr (V::kWidth >= 8) {
    if (p.dim == 128) {
      return p.tokens == 1 ? kda_rows_all<V, 128 / V::kWidth, 2>(p, s)
                           : kda_rows_all<V, 128 / V::kWidth, V::kWidth / 4>(p, s);
    }
    if (p.dim == 64) {
      return p.tokens == 1 ? kda_rows_all<V, 64 / V::kWidth, 2>(p, s) : kda_rows_all<V, 64 / V::kWidth, V::kWidth / 4>(p, s);
    }
  }
  kda_rows_any<V>(p, s);
}

template <class V>
KdaPrepared kda_prepared(const KdaRun& run, const KdaBlock& block, int64_t first, int64_t count) {
  KdaPrepared p;
  p.kn = block.kn;
  p.qn = block.qn;
  p.g = block.g;
  p.beta = block.beta;
  p.v = run.v + first * run.row_stride;
  p.out = run.out + first * run.row_stride;
  p.tokens = count;
  p.dim = run.dim;
  p.padded = kda_padded(run.dim);
  p.row_stride = run.row_stride;
  p.state = run.state;
  p.scratch = block.rest;
  p.centred = run.bounded && run.lower_bound >= kCentredBound;
  return p;
}

template <class V, void (*Step)(const KdaPrepared&)>
void kda_run(const KdaRun& run) {
  const KdaBlock block = kda_block(run.scratch, kda_padded(run.dim));
  for (int64_t first = 0; first < run.tokens; first += kKdaChunk) {
    const int64_t count = run.tokens - first < kKdaChunk ? run.tokens - first : kKdaChunk;
    kda_prepare<V>(run, first, count, block);
    Step(kda_prepared<V>(run, block, first, count));
  }
}

}  // namespace k3::ops
