// Purpose:  mla_kernel.h over a vector type V of lanes.h.
// Shapes:   mla_kernel.h.
// Units:    none.
// Memory:   mla_kernel.h.
// Threads:  pure functions.
// Errors:   none.
// Source:   kernels.md 8; model.md 3.4.
#pragma once

#include "k3/ops/mla/mla_kernel.h"
#include "k3/ops/mla/mla_tiles_impl.h"

namespace k3::ops {

constexpr float kNoScore = -3.0e38F;  // below every score; finite, so that e^{kNoScore - m} is 0 and not NaN

template <class T, int N>
struct Lanes {
  typedef T type __attribute__((vector_size(sizeof(T) * N)));
};

// n numbers of FP8 E4M3 to FP32, exactly, zeros up to padded. No denormals on the way (slow on some processors): a number
// below 2^-6 is its mantissa, converted, times 2^-9.
template <class V>
K3_VEC_INLINE void widen_f8(const uint8_t* from, int64_t n, int64_t padded, float* to) {
  constexpr int kW = static_cast<int>(V::kWidth);
  using Bytes = typename Lanes<uint8_t, kW>::type;
  using Words = typename Lanes<uint32_t, kW>::type;
  using Ints = typename Lanes<int32_t, kW>::type;
  using Floats = typename Lanes<float, kW>::type;
  for (int64_t i = 0; i < padded; i += kW) {
    Bytes raw = {};
    if (i + kW <= n) {
      __builtin_memcpy(&raw, from + i, sizeof(raw));
    } else {
      for (int64_t k = 0; i + k < n; ++k) raw[k] = from[i + k];
    }
    const Words bits = __builtin_convertvector(raw, Words), size = bits & 0x7F;
    const Words normal = (size << 20) + (120U << 23);
    const Words small = (Words)(__builtin_convertvector((Ints)size, Floats) * 0x1p-9F);
    const Words is_small = (Words)(size < 8), is_nan = (Words)(size == 0x7F);
    const Words value = ((small & is_small) | (normal & ~is_small) | (is_nan & 0x7FC00000U)) | ((bits & 0x80) << 24);
    __builtin_memcpy(to + i, &value, sizeof(value));
  }
}

template <class V>
K3_VEC_INLINE void read_latent(const PagedKv& cache, int64_t first, int64_t count, int64_t width, int64_t padded,
                               float* to) {
  for (int64_t i = 0; i < count; ++i) {
    if (cache.dtype == DType::f8_e4m3) {
      widen_f8<V>(cache.row_f8(first + i), width, padded, to + i * padded);
    } else {
      widen_row<V>(cache.row(first + i), cache.dtype == DType::bf16 ? Scheme::bf16 : Scheme::f32, width, padded, to + i * padded);
    }
  }
}

// One token reads BF16 weights once, so they are widened in registers: the sums are those of the general path.
template <class V>
K3_VEC_INLINE bool streams(const Weight& w, int64_t tokens) {
  return V::kWidth == 16 && tokens == 1 && w.scheme == Scheme::bf16 && w.cols % (16 * V::kWidth) == 0;
}

// out += sum_n q[n] w[n]: one chain over n per column, 16 vectors of columns at a time.
template <class V>
K3_VEC_INLINE void absorb_stream(const Weight& w, const float* q, float* out) {
  constexpr int kN = 16;
  for (int64_t j = 0; j < w.cols; j += kN * V::kWidth) {
    typename V::F sum[kN];
    K3_UNROLL
    for (int i = 0; i < kN; ++i) sum[i] = V::load(out + j + i * V::kWidth);
    const auto* row = static_cast<const uint16_t*>(w.data) + j;
    for (int64_t n = 0; n < w.rows; ++n, row += w.cols) {
      const typename V::F x = V::set(q[n]);
      K3_UNROLL
      for (int i = 0; i < kN; ++i) sum[i] = V::fma(x, V::load_bf16(row + i * V::kWidth), sum[i]);
    }
    K3_UNROLL
    for (int i = 0; i < kN; ++i) V::store(out + j + i * V::kWidth, sum[i]);
  }
}

// out[v] = w[v] . latent: a lane-wise chain, then the tree of dot_tile; rows in order, as they lie in memory.
template <class V>
K3_VEC_INLINE void project_stream(const Weight& w, const float* latent, float* out) {
  constexpr int kN = static_cast<int>(V::kWidth);
  for (int64_t v = 0; v < w.rows; v += kN) {
    const int64_t count = w.rows - v < kN ? w.rows - v : kN;
    typename V::F sum[kN];
    K3_UNROLL
    for (int i = 0; i < kN; ++i) sum[i] = V::zero();
    for (int64_t i = 0; i < count; ++i) {
      const auto* row = static_cast<const uint16_t*>(w.data) + (v + i) * w.cols;
      typename V::F chain = V::zero();
      for (int64_t d = 0; d < w.cols; d += V::kWidth) chain = V::fma(V::load(latent + d), V::load_bf16(row + d), chain);
      sum[i] = chain;
    }
    float total[kN];
    V::store(total, V::sums(sum));
    for (int64_t i = 0; i < count; ++i) out[v + i] = total[i];
  }
}

template <class V>
void mla_absorb(const MlaAbsorb& a) {
  const MlaDims& d = a.dims;
  const int64_t rank = mla_padded(d.rank);
  // The whole row is cleared; the shared-key part then overwrites what follows the rank, so padding is zero.
  for (int64_t t = 0; t < a.tokens; ++t) {
    for (int64_t i = 0; i < mla_padded(d.width()); ++i) a.out[t * a.out_stride + i] = 0;
  }
  const bool stream = streams<V>(a.keys, a.tokens);
  if (stream) absorb_stream<V>(a.keys, a.q, a.out);
  for (int64_t n = stream ? d.nope : 0; n < d.nope; n += kMlaRows) {
    const int64_t count = d.nope - n < kMlaRows ? d.nope - n : kMlaRows;
    widen_rows<V>(a.keys, n, count, rank, a.scratch);
    add_rows<V>(a.q + n, a.q_stride, a.tokens, a.scratch, rank, count, rank, a.out, a.out_stride);
  }
  for (int64_t t = 0; t < a.tokens; ++t) {
    for (int64_t i = 0; i < d.rope; ++i) a.out[t * a.out_stride + d.rank + i] = a.q[t * a.q_stride + d.nope + i];
  }
}

template <class V>
void mla_attend(const MlaAttend& a) {
  const MlaDims& d = a.dims;
  const int64_t width = mla_padded(d.width()), rank = mla_padded(d.rank);
  float *latent = a.scratch, *scores = a.scratch + kMlaBlock * width;
  for (int64_t t = 0; t < a.tokens; ++t) {
    for (int64_t r = 0; r < a.rows; ++r) {
      float* state = a.states + t * a.state_token_stride + r * a.state_stride;
      for (int64_t i = 0; i < kMlaStateHead + rank; ++i) state[i] = 0;
      state[0] = kNoScore;
    }
  }
  for (int64_t begin = a.begin; begin < a.end; begin += kMlaBlock) {
    const int64_t count = a.end - begin < kMlaBlock ? a.end - begin : kMlaBlock;
    read_latent<V>(a.cache, begin, count, d.width(), width, latent);
    for (int64_t t = 0; t < a.tokens; ++t) {
      int64_t visible = a.first_position + t + 1 - begin;
      if (visible <= 0) continue;
      if (visible > count) visible = count;
      float* state = a.states + t * a.state_token_stride;
      dot_rows<V>(a.queries + t * a.query_token_stride, width, a.rows, latent, width, visible, width, scores, kMlaBlock);
      for (int64_t r = 0; r < a.rows; ++r) {
        float* row = state + r * a.state_stride;
        softmax_block<V>(scores + r * kMlaBlock, visible, d.scale, row, row + 1, row + kMlaStateHead, rank);
      }
      add_rows<V>(scores, kMlaBlock, a.rows, latent, width, visible, rank, state + kMlaStateHead, a.state_stride);
    }
  }
}

template <class V>
void mla_project(const MlaProject& a) {
  const MlaDims& d = a.dims;
  const int64_t rank = mla_padded(d.rank);
  float* products = a.scratch + kMlaRows * rank;
  if (streams<V>(a.values, a.tokens)) return project_stream<V>(a.values, a.latent, a.out);
  for (int64_t v = 0; v < d.value; v += kMlaRows) {
    const int64_t count = d.value - v < kMlaRows ? d.value - v : kMlaRows;
    widen_rows<V>(a.values, v, count, rank, a.scratch);
    dot_rows<V>(a.latent, a.latent_stride, a.tokens, a.scratch, rank, count, rank, products, kMlaRows);
    for (int64_t t = 0; t < a.tokens; ++t) {
      for (int64_t i = 0; i < count; ++i) a.out[t * a.out_stride + v + i] = products[t * kMlaRows + i];
    }
  }
}

struct MlaExpandScratch {
  float *weight, *latent, *keys, *values, *queries, *sums, *state, *scores;
};

K3_VEC_INLINE MlaExpandScratch mla_expand_layout(const MlaExpand& a) {
  const MlaDims& d = a.dims;
  const int64_t key = mla_padded(d.key()), value = mla_padded(d.value), rank = mla_padded(d.rank);
  MlaExpandScratch s{};
  s.weight = a.scratch;
  s.latent = s.weight + (d.nope + d.value) * rank;
  s.keys = s.latent + kMlaBlock * mla_padded(d.width());
  s.values = s.keys + kMlaBlock * key;
  s.queries = s.values + kMlaBlock * value;
  s.sums = s.queries + a.tokens * key;
  s.state = s.sums + a.tokens * value;
  s.scores = s.state + a.tokens * 32;
  return s;
}

// Keys [nope | shared] and values of one block of cached tokens.
template <class V>
K3_VEC_INLINE void mla_expand_block(const MlaExpand& a, const MlaExpandScratch& s, int64_t begin, int64_t count) {
  const MlaDims& d = a.dims;
  const int64_t width = mla_padded(d.width()), key = mla_padded(d.key()), value = mla_padded(d.value),
                rank = mla_padded(d.rank);
  read_latent<V>(a.cache, begin, count, d.width(), width, s.latent);
  // A latent row goes on with the shared key where a padded weight row has zeros. Zero times the key is zero unless
  // the key is not finite, and then the key itself makes the scores NaN.
  dot_rows<V>(s.latent, width, count, s.weight, rank, d.nope, rank, s.keys, key);
  dot_rows<V>(s.latent, width, count, s.weight + d.nope * rank, rank, d.value, rank, s.values, value);
  for (int64_t i = 0; i < count; ++i) {
    float* k = s.keys + i * key;
    for (int64_t j = 0; j < d.rope; ++j) k[d.nope + j] = s.latent[i * width + d.rank + j];
    for (int64_t j = d.key(); j < key; ++j) k[j] = 0;
    for (int64_t j = d.value; j < value; ++j) s.values[i * value + j] = 0;
  }
}

template <class V>
void mla_expand(const MlaExpand& a) {
  const MlaDims& d = a.dims;
  const int64_t key = mla_padded(d.key()), value = mla_padded(d.value);
  const MlaExpandScratch s = mla_expand_layout(a);
  widen_rows<V>(a.weight, 0, d.nope + d.value, mla_padded(d.rank), s.weight);
  for (int64_t t = 0; t < a.tokens; ++t) {
    widen_row<V>(a.q + t * a.q_stride, Scheme::f32, d.key(), key, s.queries + t * key);
    for (int64_t i = 0; i < value; ++i) s.sums[t * value + i] = 0;
    s.state[2 * t] = kNoScore;
    s.state[2 * t + 1] = 0;
  }
  const int64_t end = a.first_position + a.tokens;
  for (int64_t begin = 0; begin < end; begin += kMlaBlock) {
    const int64_t count = end - begin < kMlaBlock ? end - begin : kMlaBlock;
    mla_expand_block<V>(a, s, begin, count);
    const int64_t first = begin > a.first_position ? begin - a.first_position : 0;  // first token that sees the block
    dot_rows<V>(s.queries + first * key, key, a.tokens - first, s.keys, key, count, key, s.scores + first * kMlaBlock,
                kMlaBlock);
    int64_t full = a.tokens;  // first token that sees all of it
    for (int64_t t = a.tokens; t-- > first;) {
      int64_t visible = a.first_position + t + 1 - begin;
      if (visible >= count) {
        visible = count;
        full = t;
      }
      softmax_block<V>(s.scores + t * kMlaBlock, visible, d.scale, s.state + 2 * t, s.state + 2 * t + 1, s.sums + t * value,
                       value);
      if (visible < count)
        add_rows<V>(s.scores + t * kMlaBlock, kMlaBlock, 1, s.values, value, visible, value, s.sums + t * value, value);
    }
    add_rows<V>(s.scores + full * kMlaBlock, kMlaBlock, a.tokens - full, s.values, value, count, value,
                s.sums + full * value, value);
  }
  for (int64_t t = 0; t < a.tokens; ++t) {
    const float factor = 1 / s.state[2 * t + 1];
    for (int64_t i = 0; i < d.value; ++i) a.out[t * a.out_stride + i] = s.sums[t * value + i] * factor;
  }
}

template <class V>
constexpr MlaKernels mla_kernels() {
  return {mla_absorb<V>, mla_attend<V>, mla_project<V>, mla_expand<V>};
}

}  // namespace k3::ops
