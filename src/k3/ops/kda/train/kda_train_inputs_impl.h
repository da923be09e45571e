// Purpose:  what stands in front of the recurrence, of one chunk: convolution, SiLU, L2 norm, decay and beta; and its reverse.
// Shapes:   [16, padded] arrays of kda_train_chunk_impl.h; rows below the last token have zero keys, queries, values and beta, and
//           decay 1; so have columns from D on.
// Units:    kda_train_kernel.h.
// Memory:   kda_train_kernel.h.
// Threads:  kda_train_kernel.h.
// Errors:   none.
// Source:   kernels.md 1 and 3 (activations). 1 - sigmoid(x) is taken as sigmoid(-x).
#pragma once

#include "k3/ops/kda/train/kda_train_products_impl.h"

namespace k3::ops {

constexpr float kTrainL2Eps = 1e-6F;  // added to the sum of squares, not to the mean

struct KdaTrainChunk {
  float *qp, *kp;                              // scale qn e^G, kn e^G; one [32, padded] array
  float *read_q, *read_k;                      // what they read of the state, one array; the first: later outputs o
  float *kn, *qs, *decay, *ke, *v, *u;         // qs = scale qn; decay e^g; ke = kn e^{G_C - G}
  float *slope[3], *gate_slope, *a_log_slope;  // of SiLU at q, k, v; dg / dz; dg / da_log
  float* state;                                // [padded, padded] K-first: before the chunk
  float *keep, *factor;                        // [padded] e^{G_C} (Decay)
  float *l, *p;                                // 16 x 16: beta times keys with keys, queries with keys; below the diagonal, P also on it
  float *beta, *beta_slope, *q_factor, *k_factor;  // beta_slope: 1 - beta
  int64_t first, tokens;
};

K3_VEC_INLINE KdaTrainChunk train_chunk(float*& s, int64_t padded) {
  KdaTrainChunk c{};
  const auto take = [&s](int64_t n) K3_VEC_LAMBDA {
    float* at = s;
    s += n;
    return at;
  };
  for (float** p : {&c.qp, &c.kp, &c.read_q, &c.read_k, &c.kn, &c.qs, &c.decay, &c.ke, &c.v, &c.u, &c.slope[0], &c.slope[1],
                    &c.slope[2], &c.gate_slope, &c.a_log_slope}) {
    *p = take(kTrainChunk * padded);
  }
  s += kTrainChunk * padded;  // spare
  c.state = take(padded * padded);
  for (float** p : {&c.keep, &c.factor}) *p = take(padded);
  for (float** p : {&c.l, &c.p}) *p = take(kTrainChunk * kTrainChunk);
  for (float** p : {&c.beta, &c.q_factor, &c.k_factor, &c.beta_slope}) *p = take(kTrainChunk);
  return c;
}

template <class V>
K3_VEC_INLINE typename V::F train_load(const float* p, int64_t left) {
  return left >= V::kWidth ? V::load(p) : left > 0 ? V::load(p, left) : V::zero();
}
template <class V>
K3_VEC_INLINE void train_store(float* p, typename V::F x, int64_t left) {
  if (left >= V::kWidth) return V::store(p, x);
  if (left > 0) V::store(p, x, left);
}

// sigmoid(x), sigmoid(-x) and e^-|x|.
template <class V>
struct SigmoidPair {
  typename V::F plus, minus, small;
};
template <class V>
K3_VEC_INLINE SigmoidPair<V> sigmoid_pair(typename V::F x) {
  const typename V::F one = V::set(1.0F), e = vec_exp<V>(V::neg(V::abs(x))), inverse = V::inverse(V::add(one, e));
  return {V::mul(V::by_sign(x, e, one), inverse), V::mul(V::by_sign(x, one, e), inverse), e};
}

// [D, K] -> [K, padded]
inline void train_taps(const KdaTrainRun& run, int64_t padded, float* to) {
  for (int part = 0; part < 3; ++part) {
    for (int64_t n = 0; n < run.taps_count; ++n) {
      for (int64_t j = 0; j < padded; ++j) {
        to[(part * run.taps_count + n) * padded + j] = j < run.dim ? run.taps[part][j * run.taps_count + n] : 0.0F;
      }
    }
  }
}

// Row t of input `part` after the convolution and SiLU, columns [j, j + width); slope when wanted.
template <class V>
K3_VEC_INLINE typename V::F train_convolved(const KdaTrainRun& run, const float* taps, int part, int64_t t, int64_t j, int64_t padded,
                                            float* slope) {
  using F = typename V::F;
  const int64_t count = run.taps_count, oldest = t < count - 1 ? count - 1 - t : 0;
  const auto x = [&](int64_t n) K3_VEC_LAMBDA {
    return train_load<V>(run.in[part] + (t - count + 1 + n) * run.row_stride + j, run.dim - j);
  };
  const auto tap = [&](int64_t n) K3_VEC_LAMBDA { return V::load(taps + (part * count + n) * padded + j); };
  F sum = V::zero();
  if (count == 4 && oldest == 0) {  // the released size
    sum = V::fma(tap(3), x(3), V::fma(tap(2), x(2), V::fma(tap(1), x(1), V::mul(tap(0), x(0)))));
  } else {
    for (int64_t n = oldest; n < count; ++n) sum = V::fma(tap(n), x(n), sum);
  }
  sum = V::max(V::set(-104.0F), sum);  // e^x is 0 below and 0 * infinity must not be met
  const SigmoidPair<V> s = sigmoid_pair<V>(sum);
  V::store(slope + j, V::mul(s.plus, V::fma(sum, s.minus, V::set(1.0F))));
  return V::mul(sum, s.plus);
}

// Unit rows times scale; returns the factor 1 / |x|.
template <class V>
K3_VEC_INLINE float train_normalise(float* row, int64_t padded, float scale) {
  typename V::F squares = V::zero();
  for (int64_t j = 0; j < padded; j += V::kWidth) {
    const typename V::F x = V::load(row + j);
    squares = V::fma(x, x, squares);
  }
  const float factor = 1.0F / __builtin_sqrtf(V::sum(squares) + kTrainL2Eps);
  for (int64_t j = 0; j < padded; j += V::kWidth) V::store(row + j, V::mul(V::load(row + j), V::set(scale * factor)));
  return factor;
}

// Log decay of columns [j, j + width) of token t, and its slopes.
template <class V>
K3_VEC_INLINE typename V::F train_decay(const KdaTrainRun& run, int64_t t, int64_t j, float* gate_slope, float* a_log_slope) {
  using F = typename V::F;
  const int64_t left = run.dim - j;
  const F x = V::add(train_load<V>(run.z + t * run.row_stride + j, left), train_load<V>(run.dt_bias + j, left));
  const F a = V::set(run.a);
  if (left <= 0) {
    V::store(gate_slope, V::zero());
    V::store(a_log_slope, V::zero());
    return V::zero();
  }
  if (run.bounded) {
    const SigmoidPair<V> s = sigmoid_pair<V>(V::mul(a, x));
    const F g = V::mul(V::set(run.lower_bound), s.plus), slope = V::mul(V::mul(g, a), s.minus);
    V::store(gate_slope, slope);
    V::store(a_log_slope, V::mul(slope, x));
    return g;
  }
  const SigmoidPair<V> s = sigmoid_pair<V>(x);
  const F g = V::neg(V::mul(a, V::add(V::max(V::set(0.0F), x), vec_log1p_unit<V>(s.small))));
  V::store(gate_slope, V::neg(V::mul(a, s.plus)));
  V::store(a_log_slope, g);
  return g;
}

template <class V>
K3_VEC_INLINE void train_token(const KdaTrainRun& run, const KdaTrainChunk& c, const float* taps, int64_t r, int64_t padded) {
  const int64_t t = c.first + r, at = r * padded;
  float* const rows[3] = {c.qs + at, c.kn + at, c.v + at};
  for (int part = 0; part < 3; ++part) {
    for (int64_t j = 0; j < padded; j += V::kWidth) {
      V::store(rows[part] + j, train_convolved<V>(run, taps, part, t, j, padded, c.slope[part] + at));
    }
  }
  c.q_factor[r] = train_normalise<V>(rows[0], padded, run.scale);
  c.k_factor[r] = train_normalise<V>(rows[1], padded, 1.0F);
  for (int64_t j = 0; j < padded; j += V::kWidth) {
    V::store(c.decay + at + j, train_decay<V>(run, t, j, c.gate_slope + at + j, c.a_log_slope + at + j));  // g, for now
  }
}

// e^g, e^G and e^{G_C - G}: the powers are products of factors that are at most 1.
template <class V>
K3_VEC_INLINE void train_factors(const KdaTrainChunk& c, int64_t padded) {
  using F = typename V::F;
  for (int64_t j = 0; j < padded; j += V::kWidth) {
    F sum = V::zero(), power = V::set(1.0F);
    for (int64_t r = 0; r < kTrainChunk; ++r) {
      const int64_t at = r * padded + j;
      const F g = V::load(c.decay + at), e = vec_exp<V>(g);
      sum = V::add(sum, g);
      power = V::mul(power, e);
      V::store(c.decay + at, e);
      V::store(c.kp + at, V::mul(V::load(c.kn + at), power));
      V::store(c.qp + at, V::mul(V::load(c.qs + at), power));
    }
    power = V::set(1.0F);
    for (int64_t r = kTrainChunk; r-- > 0;) {
      const int64_t at = r * padded + j;
      V::store(c.ke + at, V::mul(V::load(c.kn + at), power));
      power = V::mul(power, V::load(c.decay + at));
    }
    const Decay<V> all = decay_of<V>(sum);
    V::store(c.keep + j, all.keep);
    V::store(c.factor + j, all.factor);
  }
}

template <class V>
void train_inputs(const KdaTrainRun& run, const KdaTrainChunk& c, const float* taps, int64_t padded) {
  float b[kTrainChunk] = {};
  for (int64_t r = 0; r < c.tokens; ++r) b[r] = run.b[(c.first + r) * run.heads];
  for (int64_t r = 0; r < kTrainChunk; r += V::kWidth) {
    const SigmoidPair<V> s = sigmoid_pair<V>(V::load(b + r));
    V::store(c.beta + r, s.plus);
    V::store(c.beta_slope + r, s.minus);
  }
  for (int64_t r = 0; r < c.tokens; ++r) train_token<V>(run, c, taps, r, padded);
  for (int64_t r = c.tokens; r < kTrainChunk; ++r) {
    c.beta[r] = 0;
    for (int64_t j = 0; j < padded; j += V::kWidth) {
      for (float* rows : {c.qs, c.kn, c.v, c.decay}) V::store(rows + r * padded + j, V::zero());  // decay: g, for now
    }
  }
  train_factors<V>(c, padded);
}

}  // namespace k3::ops
