// Purpose:  the chunk form of KDA with its matrix products on BF16 tiles, over the macros of tile_unit_amx.h or
//           tile_unit_emulated.h, included before this.
// Shapes:   C = 16 tokens; D a multiple of 32. A tile [m, 32] on the left is "rows", on the right "pairs": row k holds two
//           inputs, 2 k and 2 k + 1, of every column.
// Units:    decay as natural logarithm.
// Memory:   everything in the scratch of KdaPrepared; the state stays FP32 in its place.
// Threads:  pure functions.
// Errors:   none.
// Source:   kernels.md 2. An operand is split into two BF16 numbers, x = hi + lo + e, |lo| <= 2^-8 |x|, |e| <= 2^-16 |x|,
//           and a product x y becomes hi hi + hi lo + lo hi, exact products with FP32 sums: off by lo lo, e y and x e, at
//           most 3 * 2^-16 |x y| = 4.6e-5 |x y|, in the norm a tenth of that, since signs vary. (One BF16 number each:
//           2^-7 |x y|; with that, identical keys that stay in memory give 2.4e-2 in the state, and 2e-2 is allowed.)
//           - Km Kp^T, Km Qp^T, S Kp^T, S Qp^T (D inputs): three products.
//           - D T^T, U P^T, U Ke (16 inputs): hi and lo of the right side share the 32 inputs of a tile, so that two
//             products give all four terms.
//           The inverse, decays, norms and the decayed state stay FP32. A split number keeps its relative accuracy over the
//           range of the exponent, but for a lo under 2^-126, which counts as zero.
//           Gates with a lower bound of -5 or above: Kp and Qp take their decay from a middle token on, e^{G_r - G_m}, and
//           Km its inverse, both within e^{+-40}; e^{G_m} goes into the state that meets them. Entries other than i <= r
//           are large there and dropped by select. Other gates: G_m = 0, and as e^{-G} overflows the pairs are those of
//           kda_chunk_impl.h in FP32.
#pragma once

#include <immintrin.h>

#include "k3/ops/kda/kda_chunk_impl.h"

namespace k3::ops {
namespace {

constexpr int64_t kMiddle = 7;              // token m
constexpr int64_t kTileElements = 16 * 32;  // BF16 numbers of a tile

struct KdaTiles {
  uint16_t *kp_high, *kp_low, *qp_high, *qp_low;  // pairs [D / 32], tiles one after the other
  uint16_t *km_high, *km_low;                     // rows [D / 32]
  uint16_t* ke;                                   // pairs [D / 16]: hi of the 16 tokens, then lo
  uint16_t *s_high, *s_low;                       // rows [D / 32] of 16 value rows
  uint16_t *d_high, *d_low;                       // rows [D / 16], each number twice; D, then U
  uint16_t *t, *p;                                // pairs: hi, then lo
  float* centre;                                  // [D], e^{G_m}
  float *x_k, *x_q;                               // [D, C]: S Kp^T, then U^T; S Qp^T, then the outputs
  float* square;                                  // [C, C]
};

// Fills what kda_chunk_impl.h needs of KdaChunk as well; arrays that are never wanted at once share a place.
K3_VEC_INLINE KdaTiles kda_tiles_scratch(float* s, int64_t dim, KdaChunk* c) {
  const int64_t n = kKdaChunk * dim, m = kKdaChunk * kKdaChunk;
  s = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(s) + 63) / 64 * 64);
  KdaTiles k{};
  for (uint16_t** p : {&k.kp_high, &k.kp_low, &k.qp_high, &k.qp_low, &k.km_high, &k.km_low, &k.s_high, &k.s_low}) {
    *p = reinterpret_cast<uint16_t*>(s);
    s += n / 2;
  }
  for (uint16_t** p : {&k.ke, &k.d_high, &k.d_low}) {
    *p = reinterpret_cast<uint16_t*>(s);
    s += n;
  }
  for (uint16_t** p : {&k.t, &k.p}) {
    *p = reinterpret_cast<uint16_t*>(s);
    s += m;
  }
  for (float** p : {&k.x_k, &k.x_q, &c->v_t}) {
    *p = s;
    s += n;
  }
  for (float** p : {&k.centre, &c->keep, &c->factor}) {
    *p = s;
    s += dim;
  }
  for (float** p : {&k.square, &c->l, &c->p_rows, &c->p_columns, &c->t_columns, &c->beta}) {
    *p = s;
    s += m;
  }
  c->decay = k.x_k;
  c->w = k.x_q;
  c->kp = reinterpret_cast<float*>(k.d_high);  // copies of keys and queries with zeros at the end
  c->qp = reinterpret_cast<float*>(k.d_low);
  c->v = reinterpret_cast<float*>(k.d_high);
  c->o_t = k.x_q;
  return k;
}

K3_VEC_INLINE __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

struct Split {
  __m256i high, low;
};

K3_VEC_INLINE Split split(__m512 x) {
  const auto high = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
  return {high, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_sub_ps(x, widen(high))))};
}

// The upper halves of the dwords of a, then of b.
K3_VEC_INLINE __m512i upper_halves(__m512i a, __m512i b) {
  const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                                       21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_permutex2var_epi16(a, odd, b);
}

// Two vectors that follow each other in a row. hi is rounded by an addition to the bits (halves away from zero), which
// leaves it in FP32 as well.
K3_VEC_INLINE void split_row(__m512 a, __m512 b, uint16_t* high, uint16_t* low) {
  const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
  const __m512i a_bits = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(a), half), upper);
  const __m512i b_bits = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(b), half), upper);
  a = _mm512_sub_ps(a, _mm512_castsi512_ps(a_bits));
  b = _mm512_sub_ps(b, _mm512_castsi512_ps(b_bits));
  _mm512_store_si512(high, upper_halves(a_bits, b_bits));
  _mm512_store_si512(low, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
}

// One vector, twice in its row: against hi and lo of the right side.
K3_VEC_INLINE void split_twice(__m512 x, uint16_t* high, uint16_t* low) {
  const Split s = split(x);
  _mm512_store_si512(high, _mm512_broadcast_i64x4(s.high));
  _mm512_store_si512(low, _mm512_broadcast_i64x4(s.low));
}

K3_VEC_INLINE __m512i pair(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

// 16 vectors, one an input, as pairs: eight rows of hi, eight of lo.
K3_VEC_INLINE void split_pairs(const __m512* rows, uint16_t* out) {
  K3_UNROLL
  for (int i = 0; i < 8; ++i) {
    const Split even = split(rows[2 * i]), odd = split(rows[2 * i + 1]);
    _mm512_store_si512(out + 32 * i, pair(even.high, odd.high));
    _mm512_store_si512(out + 32 * (8 + i), pair(even.low, odd.low));
  }
}

// A tile of rows (tokens) as pairs of its numbers (inputs), tokens in the columns.
K3_VEC_INLINE void rows_to_pairs(const uint16_t* rows, uint16_t* out) {
  __m512 pairs[16];
  transpose16(rows, 64, pairs);
  K3_UNROLL
  for (int i = 0; i < 16; ++i) _mm512_store_ps(out + 32 * i, pairs[i]);
}

// 1 / x within 1e-7: an estimate to 2^-14 and one step of Newton's.
K3_VEC_INLINE __m512 reciprocal(__m512 x) {
  const __m512 r = _mm512_rcp14_ps(x);
  return _mm512_fmadd_ps(_mm512_fnmadd_ps(x, r, _mm512_set1_ps(1.0F)), r, r);
}

// Decays of 16 channels: from token m to token r and back.
struct TileDecays {
  __m512 to[kKdaChunk], from[kKdaChunk];
};

// Products of e^g, outwards from the middle: 15 factors are off by 15 * 2e-7, far less than the split of what they scale.
// Leaves e^{G_m}, Ke and the decay of the chunk.
template <class V>
K3_VEC_INLINE TileDecays tile_decays(const KdaPrepared& p, const KdaChunk& c, const KdaTiles& k, int64_t j) {
  using F = typename V::F;
  constexpr int64_t kC = kKdaChunk;
  F decay[kC], ke[kC], sum = V::zero(), after = V::set(1.0F);
  for (int64_t r = kC; r-- > 0;) {
    decay[r] = V::set(1.0F);
    ke[r] = V::zero();
    if (r >= p.tokens) continue;
    const F g = V::load(p.g + r * p.padded + j);
    sum = V::add(sum, g);
    decay[r] = vec_exp<V>(g);
    ke[r] = V::mul(V::load(p.kn + r * p.padded + j), after);
    after = V::mul(after, decay[r]);
  }
  split_pairs(ke, k.ke + j / 16 * kTileElements);
  const Decay<V> all = decay_of<V>(sum);
  V::store(c.keep + j, all.keep);
  V::store(c.factor + j, all.factor);
  TileDecays d;
  const int64_t middle = p.centred ? kMiddle : 0;
  F start = decay[0];  // e^{G_m}
  for (int64_t r = 1; r <= middle; ++r) start = V::mul(start, decay[r]);
  V::store(k.centre + j, p.centred ? start : V::set(1.0F));
  d.to[middle] = p.centred ? V::set(1.0F) : start;
  d.from[middle] = V::set(1.0F);
  for (int64_t r = middle + 1; r < kC; ++r) {
    d.to[r] = V::mul(d.to[r - 1], decay[r]);
    if (p.centred) d.from[r] = V::mul(d.from[r - 1], reciprocal(decay[r]));
  }
  for (int64_t r = middle; r > 0; --r) {
    d.to[r - 1] = V::mul(d.to[r], reciprocal(decay[r]));
    d.from[r - 1] = V::mul(d.from[r], decay[r]);
  }
  return d;
}

template <class V>
K3_VEC_INLINE void tile_factors(const KdaPrepared& p, const KdaChunk& c, const KdaTiles& k) {
  using F = typename V::F;
  constexpr int64_t kC = kKdaChunk;
  alignas(64) uint16_t kp[2][kTileElements], qp[2][kTileElements];
  for (int64_t j = 0; j < p.dim; j += 32) {
    const TileDecays decays[2] = {tile_decays<V>(p, c, k, j), tile_decays<V>(p, c, k, j + 16)};
    for (int64_t r = 0; r < kC; ++r) {
      F key[2], query[2];
      K3_UNROLL
      for (int64_t h = 0; h < 2; ++h) {
        const int64_t at = r * p.padded + j + 16 * h;
        key[h] = r < p.tokens ? V::load(p.kn + at) : V::zero();
        query[h] = r < p.tokens ? V::load(p.qn + at) : V::zero();
      }
      const F to[2] = {decays[0].to[r], decays[1].to[r]};
      split_row(V::mul(key[0], to[0]), V::mul(key[1], to[1]), kp[0] + 32 * r, kp[1] + 32 * r);
      split_row(V::mul(query[0], to[0]), V::mul(query[1], to[1]), qp[0] + 32 * r, qp[1] + 32 * r);
      if (!p.centred) continue;
      const int64_t at = j * kC + 32 * r;
      split_row(V::mul(key[0], decays[0].from[r]), V::mul(key[1], decays[1].from[r]), k.km_high + at, k.km_low + at);
    }
    rows_to_pairs(kp[0], k.kp_high + j * kC);
    rows_to_pairs(kp[1], k.kp_low + j * kC);
    rows_to_pairs(qp[0], k.qp_high + j * kC);
    rows_to_pairs(qp[1], k.qp_low + j * kC);
  }
}

// Tiles 0 and 1: rows times keys and rows times queries, over all D inputs.
K3_VEC_INLINE void tile_products(const KdaTiles& k, const uint16_t* high, const uint16_t* low, int64_t dim, float* keys,
                                 float* queries) {
  K3_TILE_FENCE();
  K3_TILE_ZERO(0);
  K3_TILE_ZERO(1);
  for (int64_t i = 0; i < dim * kKdaChunk; i += kTileElements) {
    K3_TILE_LOAD(2, high + i, 64);
    K3_TILE_LOAD(4, k.kp_high + i, 64);
    K3_TILE_LOAD(6, k.qp_high + i, 64);
    K3_TILE_DOT(0, 2, 4);
    K3_TILE_DOT(1, 2, 6);
    K3_TILE_LOAD(3, low + i, 64);
    K3_TILE_DOT(0, 3, 4);
    K3_TILE_DOT(1, 3, 6);
    K3_TILE_LOAD(5, k.kp_low + i, 64);
    K3_TILE_LOAD(7, k.qp_low + i, 64);
    K3_TILE_DOT(0, 2, 5);
    K3_TILE_DOT(1, 2, 7);
  }
  K3_TILE_STORE(0, keys, 64);
  K3_TILE_STORE(1, queries, 64);
}

// L by rows and P by columns, as chunk_pairs.
template <class V>
K3_VEC_INLINE void tile_pairs(const KdaPrepared& p, const KdaChunk& c, const KdaTiles& k) {
  constexpr int64_t kC = kKdaChunk;
  tile_products(k, k.km_high, k.km_low, p.dim, k.square, c.p_columns);
  const typename V::F beta = V::load(c.beta);
  for (int64_t i = 0; i < kC; ++i) {
    const auto from_i = static_cast<__mmask16>(0xFFFFU << i);
    V::store(c.p_columns + i * kC, _mm512_maskz_mov_ps(from_i, V::load(c.p_columns + i * kC)));
    V::store(k.square + i * kC, _mm512_maskz_mul_ps(from_i, V::load(k.square + i * kC), beta));
  }
  V::transpose(k.square, kC, c.l, kC);
}

// Splits 16 value rows of the state, decayed to token m, and leaves the state decayed to the end of the chunk.
template <class V>
K3_VEC_INLINE void tile_read_state(const KdaPrepared& p, const KdaChunk& c, const KdaTiles& k, int64_t row) {
  using F = typename V::F;
  for (int64_t j = 0; j < p.dim; j += 32) {
    F centre[2], keep[2], factor[2];
    K3_UNROLL
    for (int64_t h = 0; h < 2; ++h) {
      centre[h] = V::load(k.centre + j + 16 * h);
      keep[h] = V::load(c.keep + j + 16 * h);
      factor[h] = V::load(c.factor + j + 16 * h);
    }
    for (int64_t r = 0; r < 16; ++r) {
      float* state = p.state + (row + r) * p.dim + j;
      const F a = V::load(state), b = V::load(state + 16);
      V::store(state, V::fma(a, factor[0], V::mul(a, keep[0])));
      V::store(state + 16, V::fma(b, factor[1], V::mul(b, keep[1])));
      const int64_t at = j * kKdaChunk + 32 * r;
      split_row(V::mul(a, centre[0]), V::mul(b, centre[1]), k.s_high + at, k.s_low + at);
    }
  }
}

// out = (or, with kAdd, +=) rows (each number twice) times pairs (hi, then lo): tile 0.
template <bool kAdd>
K3_VEC_INLINE void tile_product16(const uint16_t* high, const uint16_t* low, const uint16_t* pairs, float* out) {
  K3_TILE_FENCE();
  if constexpr (kAdd) {
    K3_TILE_LOAD(0, out, 64);
  } else {
    K3_TILE_ZERO(0);
  }
  K3_TILE_LOAD(4, pairs, 64);
  K3_TILE_LOAD(2, high, 64);
  K3_TILE_DOT(0, 2, 4);
  K3_TILE_LOAD(3, low, 64);
  K3_TILE_DOT(0, 3, 4);
  K3_TILE_STORE(0, out, 64);
}

// U = T Diag(beta) (V - Kp S0) and O = Qp S0 + P U, transposed. Loops over independent tiles hide the latency of each.
template <class V>
K3_VEC_INLINE void tile_values(const KdaPrepared& p, const KdaChunk& c, const KdaTiles& k) {
  using F = typename V::F;
  constexpr int64_t kC = kKdaChunk;
  for (int64_t row = 0; row < p.dim; row += 16) {
    tile_read_state<V>(p, c, k, row);
    tile_products(k, k.s_high, k.s_low, p.dim, k.x_k + row * kC, k.x_q + row * kC);
  }
  const F beta = V::load(c.beta);
  for (int64_t v = 0; v < p.dim; ++v) {
    const F delta = V::sub(V::load(c.v_t + v * kC), V::load(k.x_k + v * kC));
    split_twice(V::mul(beta, delta), k.d_high + 32 * v, k.d_low + 32 * v);
  }
  for (int64_t v = 0; v < p.dim; v += 16) tile_product16<false>(k.d_high + 32 * v, k.d_low + 32 * v, k.t, k.x_k + v * kC);
  for (int64_t v = 0; v < p.dim; ++v) split_twice(V::load(k.x_k + v * kC), k.d_high + 32 * v, k.d_low + 32 * v);
  for (int64_t v = 0; v < p.dim; v += 16) tile_product16<true>(k.d_high + 32 * v, k.d_low + 32 * v, k.p, k.x_q + v * kC);
}

// S += U^T Ke on the decayed state.
K3_VEC_INLINE void tile_state(const KdaPrepared& p, const KdaTiles& k) {
  const int64_t stride = p.dim * int64_t{sizeof(float)};
  K3_TILE_FENCE();
  for (int64_t row = 0; row < p.dim; row += 16) {
    K3_TILE_LOAD(2, k.d_high + 32 * row, 64);
    K3_TILE_LOAD(3, k.d_low + 32 * row, 64);
    for (int64_t j = 0; j < p.dim; j += 32) {
      float* state = p.state + row * p.dim + j;
      const uint16_t* ke = k.ke + j * 32;
      K3_TILE_LOAD(0, state, stride);
      K3_TILE_LOAD(4, ke, 64);
      K3_TILE_DOT(0, 2, 4);
      K3_TILE_LOAD(1, state + 16, stride);
      K3_TILE_LOAD(5, ke + kTileElements, 64);
      K3_TILE_DOT(1, 2, 5);
      K3_TILE_DOT(0, 3, 4);
      K3_TILE_DOT(1, 3, 5);
      K3_TILE_STORE(0, state, stride);
      K3_TILE_STORE(1, state + 16, stride);
    }
  }
}

template <class V>
void kda_chunk_tiles(const KdaPrepared& p) {
  using F = typename V::F;
  KdaChunk c{};
  const KdaTiles k = kda_tiles_scratch(p.scratch, p.dim, &c);
  for (int64_t r = 0; r < kKdaChunk; ++r) c.beta[r] = r < p.tokens ? p.beta[r] : 0.0F;
  if (!p.centred) {
    const KdaPrepared full = chunk_whole(p, c.kp, c.qp);
    for (int64_t i = 0; i < kKdaChunk * p.dim; i += V::kWidth) {
      V::store(c.decay + i, i < p.tokens * p.dim ? vec_exp<V>(V::load(p.g + i)) : V::set(1.0F));
    }
    chunk_pairs<V>(full, c);
  }
  tile_factors<V>(p, c, k);
  if (p.centred) tile_pairs<V>(p, c, k);
  chunk_inverse<V>(c);
  F rows[kKdaChunk];
  for (int64_t i = 0; i < kKdaChunk; ++i) rows[i] = V::load(c.t_columns + i * kKdaChunk);
  split_pairs(rows, k.t);
  for (int64_t i = 0; i < kKdaChunk; ++i) rows[i] = V::load(c.p_columns + i * kKdaChunk);
  split_pairs(rows, k.p);
  chunk_read_values<V>(p, c);
  tile_values<V>(p, c, k);
  tile_state(p, k);
  chunk_write_outputs<V>(p, c);
}

// A type of its own: what is made of templates here, for this instruction set, stays in this source.
struct TileLanes : Lanes512 {};

void run_kda_tiles(const KdaRun& run) {
  K3_TILE_BEGIN();
  kda_run<TileLanes, kda_chunk_tiles<TileLanes>>(run);
  K3_TILE_END();
}

}  // namespace
}  // namespace k3::ops
