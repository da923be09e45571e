// Internal to ops/kda. Parts of the verify and commit kernels: operands of products split in two, tiles of the state, the
// factors of a window and its triangular system.
#pragma once

#include "k3/ops/kda/cuda/kda_decode_device.cuh"
#include "k3/ops/kda/cuda/kda_verify_words.cuh"

namespace k3::ops::cuda {

constexpr int kVerifyWarps = 8, kVerifyThreads = kVerifyWarps * 32;
constexpr int kRingBlocks = 6;  // of the eight of a lane's tile that come to shared memory: what two blocks have room for
constexpr int kPad = 136;  // floats a row of the window's operands: rows are 8 banks apart, 16 lanes meet no bank twice
constexpr int kPadCommit = 264;  // likewise for the commit's, whose rows are pairs of tokens t, t + 4

// A warp holds a tile of 16 rows of the state. Lane (g, t) = (lane / 4, lane % 4) has rows g and g + 8 and, of every block j
// of 16 positions, positions 4t .. 4t + 3: at once the accumulator of the commit's products (two of 8 columns) and the left
// operand of the window's (two of 8 deep), with no exchange between. position() says where a column lies: FP32 as it is,
// BF16 so that a lane's 16 bytes serve two blocks.
template <class State>
__device__ __forceinline__ int position(int column) {
  if constexpr (sizeof(State) == 4) return column;
  return (column & ~31) + 16 * ((column >> 2) & 1) + 4 * ((column & 31) >> 3) + (column & 3);
}
// Where a right operand has position p, so that a lane reads its two values of a product at once: of the window, positions
// of one token; of the commit, one position of tokens t and t + 4.
__device__ __forceinline__ int window_place(int p) { return 8 * (2 * (p / 16) + (p % 4) / 2) + 2 * ((p % 16) / 4) + p % 2; }
__device__ __forceinline__ int commit_place(int p) {
  return 16 * (2 * (p / 16) + (p % 4) / 2) + 2 * (2 * ((p % 16) / 4) + p % 2);
}
__device__ __forceinline__ float2 load2(const float* from) { return *reinterpret_cast<const float2*>(from); }

// What a block knows of a request and head. A request without a slot has no tokens, accepted or new, here, and `dead` rows
// to clear.
struct VerifyPair {
  int head, slot, accepted, old_row0, boundary, export_slot, row0, count, dead;
};

template <int kTokens>
struct __align__(128) VerifyShared {
  union {
    float4 taps[3][kDim];  // of channel c at 32 (c % 4) + c / 4; gone when the tokens have their factors
    struct {
      float commit[kTokens / 2][kPadCommit];
      float commit_decay[kDim];
      float key_key[kTokens][kTokens], key_query[kTokens][kTokens];  // [i][r]: token i seen by a later r; 0 elsewhere
    };
  };
  float bias[kDim], norm[kDim];
  // Of the last window: u; inputs of the keys, three before it first, and of the decays; kn and e^g, made of these.
  float u[kTokens][kDim];  // in the end this window's
  __nv_bfloat16 old_keys[3 + kTokens][kDim], old_z[kTokens][kDim];
  float old_factors[kTokens][2][kDim];
  // Of this window: inputs q, k, v, three before it first; z; gate.
  __nv_bfloat16 rows[5][3 + kTokens][kDim];
  float factors[kTokens][2][kDim];  // kn, e^g
  float qn[kTokens][kDim];
  float v[kTokens][kDim];  // in the end the outputs
  union {
    float window[2][kTokens][kPad];  // keys and queries times the decay from the window's start
    float before[12][kDim];  // of an FP32 conv state, what is not in rows, then in old_keys; gone when `window` comes
  };
  float beta[kTokens];
  VerifyPair pair;
};
template <class State, int kTokens>
struct VerifyBlock : VerifyShared<kTokens> {
  float4 ring[sizeof(State) == 4 ? 2 * kRingBlocks : 1][kVerifyThreads];  // the lanes' pieces of a tile (Tile<float>)
};

// With boxes of the copy engine in place of the ring.
struct BulkBlock {
  float4 boxes[kRingBlocks / 2][kDim * 8];  // each a multiple of 1,024 bytes from the start
  VerifyShared<8> shared;
  uint64_t full;
};

struct VerifyLane {
  int warp, lane;
};

// ---- products of values split in two, x = high + low ----

__device__ __forceinline__ float high_part(float x) { return __uint_as_float(__float_as_uint(x) & 0xFFFFE000U); }

struct Left {
  float high[4], low[4];
  // mask: 0xFFFFE000, unknown to the compiler. It would drop the masking, which the product does itself, and copy operands
  // together instead.
  __device__ __forceinline__ void set(int i, float x, uint32_t mask) {
    high[i] = __uint_as_float(__float_as_uint(x) & mask);
    low[i] = x - high[i];
  }
};

// d += a b; `rest` and `other` take the small products. b itself serves as its high part. kExact: a has no low part.
template <bool kExact>
__device__ __forceinline__ void mma_split(float (&d)[4], float (&rest)[4], float (&other)[4], const Left& a, float2 right) {
  const float b[2] = {right.x, right.y}, low[2] = {right.x - high_part(right.x), right.y - high_part(right.y)};
  mma_tf32(d, a.high, b);
  mma_tf32(rest, a.high, low);
  if constexpr (!kExact) mma_tf32(other, a.low, b);
}

// ---- tiles: `at` is the lane's first element ----

// The last blocks of a lane's FP32 tile, to registers.
using LastBlocks = float4[8 - kRingBlocks][2];
__device__ __forceinline__ void ask_last(const float* at, LastBlocks& raw) {
#pragma unroll
  for (int j = kRingBlocks; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) raw[j - kRingBlocks][i] = __ldcs(reinterpret_cast<const float4*>(at + 8 * i * kDim + 16 * j));
  }
}

// A lane's part of its tile on the way: the first blocks of FP32 come to shared memory, where only this lane looks at them, and are
// asked for first; the rest comes to registers, and is asked for when the factors of the tokens are made and need none any more.
template <class State>
struct Tile;
template <>
struct Tile<float> {
  LastBlocks raw;
  float4* ring;  // [2 kRingBlocks][kVerifyThreads], of the lane
  static __device__ __forceinline__ int first_row(int g) { return g; }
  static __device__ __forceinline__ int lane_offset(int g, int t) { return g * kDim + 4 * t; }
  __device__ __forceinline__ void ask_first(const float* at) const {
#pragma unroll
    for (int j = 0; j < kRingBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) cp_async<16>(shared_address(ring + (2 * j + i) * kVerifyThreads), at + 8 * i * kDim + 16 * j);
    }
  }
  __device__ __forceinline__ void ask_rest(const float* at) { ask_last(at, raw); }
  __device__ __forceinline__ void take(int j, float (&x)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 r = j < kRingBlocks ? ring[(2 * j + i) * kVerifyThreads] : raw[j < kRingBlocks ? 0 : j - kRingBlocks][i];
      x[i][0] = r.x, x[i][1] = r.y, x[i][2] = r.z, x[i][3] = r.w;
    }
  }
  // Rounds x to what memory holds of it, and stores it.
  static __device__ __forceinline__ void store(float* at, int j, float (&x)[2][4]) {
    __stcs(reinterpret_cast<float4*>(at + 16 * j), make_float4(x[0][0], x[0][1], x[0][2], x[0][3]));
    __stcs(reinterpret_cast<float4*>(at + 8 * kDim + 16 * j), make_float4(x[1][0], x[1][1], x[1][2], x[1][3]));
  }
};
// The same of FP32 with the first blocks brought by the copy engine, which leaves the path of loads and stores free (3 to 5 %). A box is 32 positions of 128 rows, a line of 128 bytes each,
// swizzled; lanes 4 g .. 4 g + 3 have the rows first_row(g) and eight later, so that eight lanes meet no bank twice.
constexpr int kBoxes = kRingBlocks / 2, kBoxBytes = kDim * 128;
struct BulkTile {
  LastBlocks raw;
  const float4 *even, *odd;  // blocks 2 i, 2 i + 1 of box i
  static __device__ __forceinline__ int first_row(int g) { return 4 * (g % 2) + g / 2; }
  static __device__ __forceinline__ int lane_offset(int g, int t) { return first_row(g) * kDim + 4 * t; }
  __device__ __forceinline__ void find(const float4* boxes, int warp, int g, int t) {
    const int row = first_row(g), chunk = t ^ row;  // 16 bytes of a line; row: of 16, the swizzle takes it modulo 8
    even = boxes + (16 * warp + row) * 8 + chunk;
    odd = even + (chunk < 4 ? 4 : -4);
  }
  __device__ __forceinline__ void ask_rest(const float* at) { ask_last(at, raw); }
  __device__ __forceinline__ void take(int j, float (&x)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 r = j < kRingBlocks ? (j % 2 == 0 ? even : odd)[j / 2 * (kBoxBytes / 16) + i * 64] : raw[j < kRingBlocks ? 0 : j - kRingBlocks][i];
      x[i][0] = r.x, x[i][1] = r.y, x[i][2] = r.z, x[i][3] = r.w;
    }
  }
  static __device__ __forceinline__ void store(float* at, int j, float (&x)[2][4]) { Tile<float>::store(at, j, x); }
};
template <>
struct Tile<__nv_bfloat16> {
  uint4 raw[4][2];
  float4* ring;  // unused
  static __device__ __forceinline__ int first_row(int g) { return g; }
  static __device__ __forceinline__ int lane_offset(int g, int t) { return g * kDim + 8 * t; }
  __device__ __forceinline__ void ask_first(const __nv_bfloat16*) const {}
  __device__ __forceinline__ void ask_rest(const __nv_bfloat16* at) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // two blocks each
      raw[j][0] = __ldcs(reinterpret_cast<const uint4*>(at + 32 * j));
      raw[j][1] = __ldcs(reinterpret_cast<const uint4*>(at + 8 * kDim + 32 * j));
    }
  }
  __device__ __forceinline__ void take(int j, float (&x)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t low = j % 2 == 0 ? raw[j / 2][i].x : raw[j / 2][i].z,
                     high = j % 2 == 0 ? raw[j / 2][i].y : raw[j / 2][i].w;
      x[i][0] = low_bf16(low), x[i][1] = high_bf16(low), x[i][2] = low_bf16(high), x[i][3] = high_bf16(high);
    }
  }
  static __device__ __forceinline__ void store(__nv_bfloat16* at, int j, float (&x)[2][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 two = make_uint2(pack_bf16(x[i][0], x[i][1]), pack_bf16(x[i][2], x[i][3]));
      __stcs(reinterpret_cast<uint2*>(at + 8 * i * kDim + 32 * (j / 2) + 4 * (j % 2)), two);
      x[i][0] = low_bf16(two.x), x[i][1] = high_bf16(two.x), x[i][2] = low_bf16(two.y), x[i][3] = high_bf16(two.y);
    }
  }
};

// ---- factors of tokens ----

// Convolution with SiLU of four channels; x(i): rows of the token and the three before it.
template <int kTokens, class Row>
__device__ __forceinline__ void convolved(const VerifyShared<kTokens>& s, int part, int lane, float (&y)[4], const Row& row) {
  float x[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) row(i, x[i]);
#pragma unroll
  for (int c = 0; c < 4; ++c) y[c] = conv_silu(s.taps[part][32 * c + lane], x[0][c], x[1][c], x[2][c], x[3][c]);
}
template <int kTokens>
__device__ __forceinline__ void decays(const VerifyShared<kTokens>& s, const __nv_bfloat16* z, int lane, float lower_bound,
                                       float rate, float (&y)[4]) {
  float bias[4];
  load4(&s.bias[4 * lane], bias);
  load4(z + 4 * lane, y);
#pragma unroll
  for (int c = 0; c < 4; ++c) y[c] = decay_factor_approx(y[c] + bias[c], rate, lower_bound);
}
__device__ __forceinline__ float sum_of_squares(const float (&x)[4]) {
  return x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3];
}
// x times `scale` where `take`, else `other`, whatever x is.
__device__ __forceinline__ void store_scaled(float* to, const float (&x)[4], float scale, bool take, float other) {
  float y[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) y[c] = take ? x[c] * scale : other;
  store4(to, y);
}

// The factors of the tokens, a warp a token and without a jump, so that the chains of its four convolutions and two decays run
// side by side: kn and e^g of the last window, from the rows it was computed from and by the same arithmetic, so to the bit
// what it had (512 bytes a token to keep and read where the factors would be 1,024); and q, kn, e^g, v of this window. A
// token that is not there has beta 0, key 0, decay 1: it changes nothing.
template <int kTokens, bool kWindow, bool kConvBf16>
__device__ __forceinline__ void token_factors(float lower_bound, float rate, const VerifyPair& p, const VerifyLane& l,
                                              const float (&beta)[kTokens / kVerifyWarps], VerifyShared<kTokens>& s) {
  const int at = 4 * l.lane;
#pragma unroll
  for (int n = 0; n < kTokens / kVerifyWarps; ++n) {
    const int token = l.warp + n * kVerifyWarps;
    const bool old = token < p.accepted, live = token < p.count;
    float past[4], q[4] = {}, k[4] = {}, v[4] = {};
    convolved(s, 1, l.lane, past, [&](int i, float (&x)[4]) {
      load4(&s.old_keys[token + i][at], x);
      if (!kConvBf16 && token + i < 3) load4(&s.before[9 + token + i][at], x);
    });
    if constexpr (kWindow) {
      const auto of = [&](int part, float (&y)[4]) {
        convolved(s, part, l.lane, y, [&](int i, float (&x)[4]) {
          load4(&s.rows[part][token + i][at], x);
          if (!kConvBf16 && token < 3 && i < 3 && p.accepted + token + i < 3) load4(&s.before[part * 3 + token + i][at], x);
        });
      };
      of(0, q), of(1, k), of(2, v);
    }
    float past_sum = sum_of_squares(past), q_sum = sum_of_squares(q), k_sum = sum_of_squares(k);
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
      past_sum += __shfl_xor_sync(0xFFFFFFFFU, past_sum, i);
      if constexpr (kWindow) {
        q_sum += __shfl_xor_sync(0xFFFFFFFFU, q_sum, i);
        k_sum += __shfl_xor_sync(0xFFFFFFFFU, k_sum, i);
      }
    }
    float decay[4];
    decays(s, s.old_z[token], l.lane, lower_bound, rate, decay);
    store_scaled(&s.old_factors[token][1][at], decay, 1, old, 1);
    store_scaled(&s.old_factors[token][0][at], past, rsqrtf(past_sum + kNormEps), old, 0);
    if constexpr (kWindow) {
      decays(s, s.rows[3][3 + token], l.lane, lower_bound, rate, decay);
      store_scaled(&s.factors[token][1][at], decay, 1, live, 1);
      store_scaled(&s.factors[token][0][at], k, rsqrtf(k_sum + kNormEps), live, 0);
      store_scaled(&s.qn[token][at], q, kQueryScale * rsqrtf(q_sum + kNormEps), live, 0);
      store_scaled(&s.v[token][at], v, 1, live, 0);
      if (l.lane == 0) s.beta[token] = live ? sigmoid(beta[n]) : 0.0F;
    }
  }
}

// ---- the commit ----

// Column `column` of the commit's right operand: row i is kn_i times the decay of the tokens after it, up to `count`; later
// rows are 0.
template <class State, int kTokens>
__device__ __forceinline__ void commit_column(VerifyShared<kTokens>& s, int column, int count) {
  const int p = position<State>(column), at = commit_place(p);
  float product = 1;
#pragma unroll
  for (int i = kTokens - 1; i >= 0; --i) {
    const float x = i < count ? s.old_factors[i][0][column] * product : 0.0F;
    const int row = i / 8 * 4 + i % 4, place = at + i % 8 / 4;
    s.commit[row][place] = x;
    if (i < count) product *= s.old_factors[i][1][column];
  }
  s.commit_decay[p] = product;
}

// x = decay * x + the rank-8n update of block j; right, decay: of the lane.
template <int kGroups>
__device__ __forceinline__ void commit_block(float (&x)[2][4], const Left (&u)[kGroups], const float* right,
                                             const float* decay, int j) {
  float d[2][4];  // of the two products
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
#pragma unroll
    for (int sub = 0; sub < 2; ++sub) {
      const float* at = right + 4 * n * kPadCommit + 16 * (2 * j + sub);
      const float2 b2 = load2(at);
      const float b[2] = {b2.x, b2.y}, low[2] = {b2.x - high_part(b2.x), b2.y - high_part(b2.y)};
      if (n == 0) {
        mma_tf32_from_zero(d[sub], u[n].high, b);
      } else {
        mma_tf32(d[sub], u[n].high, b);
      }
      mma_tf32(d[sub], u[n].low, b);
      mma_tf32(d[sub], u[n].high, low);
    }
  }
  float e[4];
  load4(decay + 16 * j, e);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int sub = 0; sub < 2; ++sub) {
      const int c = 2 * sub + i % 2;
      x[i / 2][c] = fmaf(e[c], x[i / 2][c], d[sub][i]);
    }
  }
}

// ---- the window ----

// Column of keys and queries times the decay since the window's start.
template <class State, int kTokens>
__device__ __forceinline__ void window_column(VerifyShared<kTokens>& s, int column) {
  const int at = window_place(position<State>(column));
  float product = 1;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    product *= s.factors[i][1][column];
    const float k = s.factors[i][0][column] * product, q = s.qn[i][column] * product;
    s.window[0][i][at] = k;
    s.window[1][i][at] = tf32_nearest(q);
  }
}

// Sums over a warp of kCount values a lane (16 or 32): afterwards x[0] of lane l is the sum of value l / (32 / kCount).
template <int kCount, int kBit = 16, int kSize>
__device__ __forceinline__ void sum_transposed(float (&x)[kSize], int lane) {
  if constexpr (kCount > 1) {
    constexpr int kHalf = kCount / 2;
    const bool upper = (lane & kBit) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float sent = upper ? x[i] : x[i + kHalf];
      x[i] = (upper ? x[i + kHalf] : x[i]) + __shfl_xor_sync(0xFFFFFFFFU, sent, kBit);
    }
    if constexpr (kBit > 1) sum_transposed<kHalf, kBit / 2>(x, lane);
  } else {
    x[0] += __shfl_xor_sync(0xFFFFFFFFU, x[0], kBit);
    if constexpr (kBit > 1) sum_transposed<1, kBit / 2>(x, lane);
  }
}

// Token i's key against keys and queries of itself and later tokens, decayed between; one warp.
template <int kTokens>
__device__ __forceinline__ void pair_dots(VerifyShared<kTokens>& s, int i, int lane) {
  float own[4], w[4] = {}, sums[2 * kTokens];  // [2r]: key . key of r; [2r + 1]: key . query
  load4(&s.factors[i][0][4 * lane], own);
#pragma unroll
  for (int r = 0; r < kTokens; ++r) {  // without a jump: before i, w is 0
    float k[4], q[4], d[4];
    load4(&s.factors[r][0][4 * lane], k);
    load4(&s.qn[r][4 * lane], q);
    load4(&s.factors[r][1][4 * lane], d);
#pragma unroll
    for (int c = 0; c < 4; ++c) w[c] = r == i ? own[c] : w[c] * d[c];
    sums[2 * r] = w[0] * k[0] + w[1] * k[1] + w[2] * k[2] + w[3] * k[3];
    sums[2 * r + 1] = w[0] * q[0] + w[1] * q[1] + w[2] * q[2] + w[3] * q[3];
  }
  sum_transposed<2 * kTokens>(sums, lane);
  constexpr int kLanes = 32 / (2 * kTokens);
  if (lane % kLanes == 0) {
    const int r = lane / kLanes / 2;
    if (lane / kLanes % 2 == 0) {
      s.key_key[i][r] = r > i ? sums[0] : 0.0F;
    } else {
      s.key_query[i][r] = r >= i ? sums[0] : 0.0F;
    }
  }
}

// The window's products with block j: keys, queries [tokens 8n + 2t + e, rows g, g + 8]; right: the lane's in s.window. Keys
// make u, which the state keeps, so they get all three products; queries make BF16 outputs, for which one does.
template <int kGroups, bool kExact>
__device__ __forceinline__ void window_block(const float (&x)[2][4], float (&keys)[kGroups][4],
                                             float (&keys_rest)[2][kGroups][4], float (&queries)[kGroups][4],
                                             const float* right, int j, uint32_t mask) {
  constexpr int kTable = 8 * kGroups * kPad;
#pragma unroll
  for (int sub = 0; sub < 2; ++sub) {
    Left a;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float value = x[e % 2][2 * sub + e / 2];
      if constexpr (kExact) {
        a.high[e] = value;
      } else {
        a.set(e, value, mask);
      }
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const float* at = right + 8 * n * kPad + 8 * (2 * j + sub);
      mma_split<kExact>(keys[n], keys_rest[0][n], keys_rest[1][n], a, load2(at));
      const float2 query = load2(at + kTable);
      const float q[2] = {query.x, query.y};
      mma_tf32(queries[n], a.high, q);
    }
  }
}

// u and the outputs of the tile's rows from the window's products with the state: o becomes them. row: the lane's first.
template <int kGroups>
__device__ __forceinline__ void solve_window(VerifyShared<8 * kGroups>& s, const float (&keys)[kGroups][4],
                                             float (&o)[kGroups][4], int row, int lane) {
  const int t = lane % 4;
  float u[kGroups][4];
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      u[n][e] = s.v[8 * n + 2 * t + e][row] - keys[n][e];
      u[n][2 + e] = s.v[8 * n + 2 * t + e][row + 8] - keys[n][2 + e];
    }
  }
#pragma unroll
  for (int i = 0; i < 8 * kGroups; ++i) {
    const float beta = s.beta[i];
    const int owner = (lane & ~3) | (i % 8 / 2);
    const float u0 = __shfl_sync(0xFFFFFFFFU, beta * u[i / 8][i % 2], owner);
    const float u1 = __shfl_sync(0xFFFFFFFFU, beta * u[i / 8][2 + i % 2], owner);
#pragma unroll
    for (int n = i / 8; n < kGroups; ++n) {
      const float2 kk = load2(&s.key_key[i][8 * n + 2 * t]), kq = load2(&s.key_query[i][8 * n + 2 * t]);
      u[n][0] = fmaf(-kk.x, u0, u[n][0]), u[n][1] = fmaf(-kk.y, u0, u[n][1]);
      u[n][2] = fmaf(-kk.x, u1, u[n][2]), u[n][3] = fmaf(-kk.y, u1, u[n][3]);
      o[n][0] = fmaf(kq.x, u0, o[n][0]), o[n][1] = fmaf(kq.y, u0, o[n][1]);
      o[n][2] = fmaf(kq.x, u1, o[n][2]), o[n][3] = fmaf(kq.y, u1, o[n][3]);
    }
  }
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = 8 * n + 2 * t + e;
      const float beta = s.beta[token];
      s.v[token][row] = o[n][e];  // read above by this lane alone
      s.v[token][row + 8] = o[n][2 + e];
      s.u[token][row] = beta * u[n][e];
      s.u[token][row + 8] = beta * u[n][2 + e];
    }
  }
}

}  // namespace k3::ops::cuda
