// Purpose:  the vjp of a head of a sequence: blocks of four chunks from the last to the first; the chunks of a block are computed
//           once more from the kept state, then gone through in reverse.
// Shapes:   kda_train_inputs_impl.h; d_state [padded, padded] K-first.
// Units:    kda_train_kernel.h.
// Memory:   kda_train_kernel.h.
// Threads:  kda_train_kernel.h.
// Errors:   none.
// Source:   kernels.md 3. The sums over dG are taken so that what the state adds does not cancel: a token's decay acts on reads at
//           and after it, and on writes before it.
#pragma once

#include "k3/ops/kda/train/kda_train_chunk_impl.h"

namespace k3::ops {

// One chunk of the vjp.
struct KdaTrainBack {
  float *d_r, *d_o, *d_delta;           // [16, padded] one array; d_delta with the sign turned
  float *d_qp, *d_kp, *d_ke;            // [16, padded]; the first two one array
  float *d_q, *d_k, *d_g;               // [16, padded]
  float *u_t;                           // [padded, 16]
  float *state_t, *d_state_t, *d_state;  // [padded, padded]
  float *d_l, *d_p;                     // 16 x 16, one array; d_l with the sign turned
  float *d_power, *d_sum;               // [padded]: gradient of e^{G_C}, and it times e^{G_C}
  float* d_pre[3];                      // [16 + K - 1, padded]: also of the tokens after the chunk
  float *taps, *sums;
  float d_beta[kTrainChunk];            // of the logits
};

K3_VEC_INLINE KdaTrainBack train_back(const KdaTrainRun& run, float* s, int64_t padded) {
  KdaTrainBack b{};
  const auto take = [&s](int64_t n) K3_VEC_LAMBDA {
    float* at = s;
    s += n;
    return at;
  };
  for (float** p : {&b.d_r, &b.d_o, &b.d_delta, &b.d_qp, &b.d_kp, &b.d_ke, &b.d_q, &b.d_k, &b.d_g, &b.u_t}) {
    *p = take(kTrainChunk * padded);
  }
  for (float** p : {&b.state_t, &b.d_state_t, &b.d_state}) *p = take(padded * padded);
  for (float** p : {&b.d_l, &b.d_p}) *p = take(kTrainChunk * kTrainChunk);
  for (float** p : {&b.d_power, &b.d_sum}) *p = take(padded);
  for (float*& p : b.d_pre) p = take((kTrainChunk + kTrainMaxTaps) * padded);
  b.taps = take(3 * kTrainMaxTaps * padded);
  b.sums = run.sums;
  return b;
}

// Through the output's norm and gate: d_o.
template <class V>
K3_VEC_INLINE void train_back_output(const KdaTrainRun& run, const KdaTrainChunk& c, const KdaTrainBack& b, int64_t r, int64_t padded) {
  using F = typename V::F;
  const int64_t at = (c.first + r) * run.row_stride;
  const float* o = c.read_q + r * padded;
  float* d_o = b.d_o + r * padded;
  const float factor = train_out_factor<V>(o, padded, run.dim, run.eps);
  F along = V::zero();
  for (int64_t j = 0; j < padded; j += V::kWidth) {
    const int64_t left = run.dim - j;
    const SigmoidPair<V> s = sigmoid_pair<V>(train_load<V>(run.gate + at + j, left));
    const F dy = train_load<V>(run.dy + at + j, left), w = train_load<V>(run.norm + j, left), n = V::mul(V::load(o + j), V::set(factor));
    const F dyn = V::mul(V::mul(dy, n), s.plus), dn = V::mul(V::mul(dy, w), s.plus);
    float* sum = b.sums + kTrainSumNorm * padded + j;
    V::store(sum, V::add(V::load(sum), dyn));
    train_store<V>(run.dgate + at + j, V::mul(V::mul(dyn, w), s.minus), left);
    V::store(d_o + j, dn);
    along = V::fma(n, dn, along);
  }
  const F mean = V::set(V::sum(along) / static_cast<float>(run.dim) * factor);
  for (int64_t j = 0; j < padded; j += V::kWidth) {
    V::store(d_o + j, V::mul(V::set(factor), V::fnma(V::load(o + j), mean, V::load(d_o + j))));
  }
}

// d_r = (I + L)^-T (Ke dS + P^T dO) of one vector of value columns; d_r comes in as Ke dS.
template <class V>
K3_VEC_INLINE void train_back_solve(const KdaTrainChunk& c, const KdaTrainBack& b, int64_t padded, int64_t j) {
  using F = typename V::F;
  constexpr int kC = kTrainChunk;
  F d[kC];
  K3_UNROLL
  for (int i = 0; i < kC; ++i) d[i] = V::load(b.d_r + i * padded + j);
  K3_UNROLL
  for (int r = 0; r < kC; ++r) {
    const F d_o = V::load(b.d_o + r * padded + j);
    K3_UNROLL
    for (int i = 0; i <= r; ++i) d[i] = V::fma(V::set(c.p[r * kC + i]), d_o, d[i]);
  }
  K3_UNROLL
  for (int r = kC - 1; r >= 0; --r) {
    K3_UNROLL
    for (int i = 0; i < r; ++i) d[i] = V::fnma(V::set(c.l[r * kC + i]), d[r], d[i]);
    V::store(b.d_r + r * padded + j, d[r]);
    V::store(b.d_delta + r * padded + j, V::mul(V::set(-c.beta[r]), d[r]));
  }
}

// Everything that touches the state; b.d_state becomes the gradient of the state before the chunk.
template <class V>
void train_back_state(const KdaTrainChunk& c, const KdaTrainBack& b, int64_t padded) {
  using F = typename V::F;
  constexpr int64_t kC = kTrainChunk;
  train_product<V>({c.ke, padded, 1, padded}, kC, b.d_state, padded, b.d_r);
  for (int64_t j = 0; j < padded; j += V::kWidth) train_back_solve<V>(c, b, padded, j);
  train_transpose<V>(c.u, kC, padded, b.u_t);
  train_product<V>({b.d_r, padded, 1, padded}, 2 * kC, b.u_t, kC, b.d_l);  // and d_p
  train_transpose<V>(c.state, padded, padded, b.state_t);
  train_transpose<V>(b.d_state, padded, padded, b.d_state_t);
  train_product<V>({b.d_o, padded, 1, padded}, 2 * kC, b.state_t, padded, b.d_qp);  // and d_kp
  train_product<V>({c.u, padded, 1, padded}, kC, b.d_state_t, padded, b.d_ke);
  for (int64_t j = 0; j < padded; j += V::kWidth) {
    F even = V::zero(), odd = V::zero();
    for (int64_t v = 0; v < padded; v += 2) {
      const int64_t at = v * padded + j;
      even = V::fma(V::load(b.state_t + at), V::load(b.d_state_t + at), even);
      odd = V::fma(V::load(b.state_t + at + padded), V::load(b.d_state_t + at + padded), odd);
    }
    V::store(b.d_sum + j, V::mul(V::add(even, odd), V::add(V::load(c.keep + j), V::load(c.factor + j))));
  }
  train_product<V>({c.qp, 1, padded, 2 * kC}, padded, b.d_o, padded, b.d_state, {c.keep, c.factor});
}

// d_l becomes beta dL, and d_beta is set. u = beta e, so that dbeta = dR . e and what beta's logit gets is (1 - beta) dR . u.
template <class V>
K3_VEC_INLINE void train_back_beta(const KdaTrainChunk& c, KdaTrainBack& b, int64_t padded) {
  for (int64_t r = 0; r < kTrainChunk; ++r) {
    typename V::F sum = V::zero();
    for (int64_t j = 0; j < padded; j += V::kWidth) {
      sum = V::fma(V::load(b.d_r + r * padded + j), V::load(c.u + r * padded + j), sum);
    }
    b.d_beta[r] = V::sum(sum) * c.beta_slope[r];
    const typename V::F turn = V::set(-c.beta[r]);
    for (int64_t i = 0; i < kTrainChunk; i += V::kWidth) {
      float* at = b.d_l + r * kTrainChunk + i;
      V::store(at, V::mul(V::load(at), turn));
    }
  }
}

// Gradients of kn, qs and g in one vector of key columns.
template <class V>
K3_VEC_INLINE void train_back_pairs(const KdaTrainChunk& c, const KdaTrainBack& b, int64_t padded, int64_t j) {
  using F = typename V::F;
  constexpr int kC = kTrainChunk;
  F w[kC];
  F power = V::set(1.0F);
  // Forward over r: w_i = kn_i e^{G_r - G_i}.
  K3_UNROLL
  for (int r = 0; r < kC; ++r) {
    const int64_t at = r * padded + j;
    const F decay = V::load(c.decay + at), kn = V::load(c.kn + at), qs = V::load(c.qs + at);
    F for_k = V::zero(), for_q = V::zero();
    K3_UNROLL
    for (int i = 0; i < r; ++i) {
      w[i] = V::mul(w[i], decay);
      for_k = V::fma(V::set(b.d_l[r * kC + i]), w[i], for_k);
      for_q = V::fma(V::set(b.d_p[r * kC + i]), w[i], for_q);
    }
    w[r] = kn;
    power = V::mul(power, decay);
    const F d_qp = V::load(b.d_qp + at), d_kp = V::load(b.d_kp + at), d_pp = V::set(b.d_p[r * kC + r]);
    for_k = V::fma(d_kp, power, for_k);
    for_q = V::fma(d_qp, power, for_q);
    V::store(b.d_g + at, V::fma(kn, for_k, V::mul(qs, for_q)));
    V::store(b.d_k + at, V::fma(d_pp, qs, for_k));
    V::store(b.d_q + at, V::fma(d_pp, kn, for_q));
  }
  // Backward over r: w_i = sum over later rows of (M_ri kn_r + dP_ri qs_r) e^{G_r - G_i}.
  power = V::set(1.0F);
  K3_UNROLL
  for (int i = 0; i < kC; ++i) w[i] = V::zero();
  F after = V::zero();  // sum of dG over the rows from r on
  K3_UNROLL
  for (int r = kC - 1; r >= 0; --r) {
    const int64_t at = r * padded + j;
    const F decay = V::load(c.decay + at), kn = V::load(c.kn + at), qs = V::load(c.qs + at), d_ke = V::load(b.d_ke + at);
    V::store(b.d_k + at, V::add(V::load(b.d_k + at), V::fma(d_ke, power, w[r])));
    after = V::add(after, V::fnma(kn, w[r], V::load(b.d_g + at)));
    V::store(b.d_g + at, after);
    power = V::mul(power, decay);
    K3_UNROLL
    for (int i = 0; i < r; ++i) {
      w[i] = V::fma(V::set(b.d_l[r * kC + i]), kn, w[i]);
      w[i] = V::mul(V::fma(V::set(b.d_p[r * kC + i]), qs, w[i]), decay);
    }
  }
  F before = V::load(b.d_sum + j);  // e^{G_C} and the writes of earlier rows
  K3_UNROLL
  for (int r = 0; r < kC; ++r) {
    const int64_t at = r * padded + j;
    V::store(b.d_g + at, V::add(V::load(b.d_g + at), before));
    before = V::fma(V::load(b.d_ke + at), V::load(c.ke + at), before);
  }
}

// row: gradient of the scaled unit row `unit` -> gradient of the row before SiLU.
template <class V>
K3_VEC_INLINE void train_back_norm(const float* unit, const float* d, const float* slope, float factor, float scale, int64_t padded,
                                   float* to) {
  using F = typename V::F;
  F along = V::zero();
  for (int64_t j = 0; j < padded; j += V::kWidth) along = V::fma(V::load(unit + j), V::load(d + j), along);
  const F all = V::set(V::sum(along) / (scale * scale)), f = V::set(factor * scale);
  for (int64_t j = 0; j < padded; j += V::kWidth) {
    const F x = V::mul(f, V::fnma(V::load(unit + j), all, V::load(d + j)));
    V::store(to + j, V::mul(x, V::load(slope + j)));
  }
}

// Gates, norms and SiLU of the chunk: dz, db and d_pre; sums of the gate's parameters.
template <class V>
void train_back_inputs(const KdaTrainRun& run, const KdaTrainChunk& c, const KdaTrainBack& b, int64_t padded) {
  for (int64_t r = 0; r < kTrainChunk; ++r) {
    const int64_t at = r * padded;
    if (r >= c.tokens) {
      for (float* rows : b.d_pre) {
        for (int64_t j = 0; j < padded; j += V::kWidth) V::store(rows + at + j, V::zero());
      }
      continue;
    }
    train_back_norm<V>(c.qs + at, b.d_q + at, c.slope[0] + at, c.q_factor[r], run.scale, padded, b.d_pre[0] + at);
    train_back_norm<V>(c.kn + at, b.d_k + at, c.slope[1] + at, c.k_factor[r], 1.0F, padded, b.d_pre[1] + at);
    const int64_t out = (c.first + r) * run.row_stride;
    for (int64_t j = 0; j < padded; j += V::kWidth) {
      const typename V::F d_v = V::neg(V::load(b.d_delta + at + j)), dg = V::load(b.d_g + at + j);
      V::store(b.d_pre[2] + at + j, V::mul(d_v, V::load(c.slope[2] + at + j)));
      const typename V::F dz = V::mul(dg, V::load(c.gate_slope + at + j));
      train_store<V>(run.dz + out + j, dz, run.dim - j);
      float *bias = b.sums + kTrainSumBias * padded + j, *decay = b.sums + kTrainSumDecay * padded + j;
      V::store(bias, V::add(V::load(bias), dz));
      V::store(decay, V::fma(dg, V::load(c.a_log_slope + at + j), V::load(decay)));
    }
    run.db[(c.first + r) * run.heads] = b.d_beta[r];
  }
}

// Through the convolution of one input; afterwards d_pre's first rows are those after the chunk before.
template <class V>
void train_back_convolution(const KdaTrainRun& run, const KdaTrainChunk& c, const KdaTrainBack& b, int part, int64_t padded) {
  using F = typename V::F;
  const int64_t count = run.taps_count;
  float* d_pre = b.d_pre[part];
  for (int64_t n = 0; n < count; ++n) {
    const int64_t back = count - 1 - n;
    float* sum = b.sums + (kTrainSumTaps + part * count + n) * padded;
    for (int64_t j = 0; j < run.dim; j += V::kWidth) {
      F d = V::zero();
      for (int64_t r = c.first < back ? back - c.first : 0; r < c.tokens; ++r) {
        const float* x = run.in[part] + (c.first + r - back) * run.row_stride + j;
        d = V::fma(V::load(d_pre + r * padded + j), train_load<V>(x, run.dim - j), d);
      }
      V::store(sum + j, V::add(V::load(sum + j), d));
    }
  }
  for (int64_t r = 0; r < c.tokens; ++r) {
    for (int64_t j = 0; j < run.dim; j += V::kWidth) {
      F d = V::zero();
      for (int64_t n = 0; n < count; ++n) {
        d = V::fma(V::load(b.taps + (part * count + n) * padded + j), V::load(d_pre + (r + count - 1 - n) * padded + j), d);
      }
      train_store<V>(run.d_in[part] + (c.first + r) * run.row_stride + j, d, run.dim - j);
    }
  }
  for (int64_t n = 0; n + 1 < count; ++n) train_copy<V>(d_pre + n * padded, padded, d_pre + (kTrainChunk + n) * padded);
}

template <class V>
void train_chunk_vjp(const KdaTrainRun& run, const KdaTrainChunk& c, KdaTrainBack& b, int64_t padded) {
  for (int64_t r = 0; r < kTrainChunk; ++r) {
    if (r < c.tokens) {
      train_back_output<V>(run, c, b, r, padded);
    } else {
      for (int64_t j = 0; j < padded; j += V::kWidth) V::store(b.d_o + r * padded + j, V::zero());
    }
  }
  train_back_state<V>(c, b, padded);
  train_back_beta<V>(c, b, padded);
  for (int64_t j = 0; j < padded; j += V::kWidth) train_back_pairs<V>(c, b, padded, j);
  train_back_inputs<V>(run, c, b, padded);
  for (int part = 0; part < 3; ++part) train_back_convolution<V>(run, c, b, part, padded);
}

template <class V>
void kda_train_vjp_run(const KdaTrainRun& run) {
  const int64_t padded = kda_train_padded(run.dim);
  float* at = run.scratch;
  KdaTrainChunk chunks[kTrainBlockChunks];
  for (KdaTrainChunk& c : chunks) c = train_chunk(at, padded);
  KdaTrainBack b = train_back(run, at, padded);
  train_taps(run, padded, b.taps);
  train_state_in(run.d_final, run.dim, padded, b.d_state);
  for (float* rows : b.d_pre) {
    for (int64_t i = 0; i < kTrainMaxTaps * padded; ++i) rows[kTrainChunk * padded + i] = 0;
  }
  constexpr int64_t kBlock = kTrainChunk * kTrainBlockChunks;
  for (int64_t block = (run.tokens + kBlock - 1) / kBlock; block-- > 0;) {
    int64_t count = 0;
    train_copy<V>(run.kept + block * run.kept_stride, padded * padded, chunks[0].state);
    for (; count < kTrainBlockChunks && block * kBlock + count * kTrainChunk < run.tokens; ++count) {
      KdaTrainChunk& c = chunks[count];
      c.first = block * kBlock + count * kTrainChunk;
      c.tokens = run.tokens - c.first < kTrainChunk ? run.tokens - c.first : kTrainChunk;
      if (count > 0) {
        train_copy<V>(chunks[count - 1].state, padded * padded, c.state);
        train_next_state<V>(chunks[count - 1], padded, c.state);
      }
      train_chunk_forward<V>(run, c, b.taps, padded);
    }
    while (count-- > 0) train_chunk_vjp<V>(run, chunks[count], b, padded);
  }
  if (run.d_initial != nullptr) train_state_out(b.d_state, run.dim, padded, run.d_initial);
}

template <class V>
constexpr KdaTrainKernels kda_train_kernels() {
  return {kda_train_forward_run<V>, kda_train_vjp_run<V>};
}

}  // namespace k3::ops
