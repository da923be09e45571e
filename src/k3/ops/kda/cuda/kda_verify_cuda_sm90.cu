// Speculative windows: the commit of the last window and the verification of the next one in one pass over the state (kernels.md 5).
// Products run on the tensor cores in TF32 with every operand split in two (x = high + low, three products), which keeps FP32's
// accuracy to about 1e-6; the triangular system of a window is solved in FP32.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/kda/cuda/kda_decode_device.cuh"
#include "k3/ops/kda/cuda/kda_verify_cuda.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kPad = 144;        // floats a row: eight lanes of a quarter warp meet no bank twice
constexpr int kPadCommit = 136;  // likewise for the commit's operand

// A warp holds a tile of 16 rows of the state. Lane (g, t) = (lane / 4, lane % 4) has rows g and g + 8 and, of every block j of 16
// positions, positions 4t .. 4t + 3: at once the accumulator of the commit's products (two of 8 columns) and the left operand of the
// window's (two of 8 deep), with no exchange between. position() says where a column lies: FP32 as it is, BF16 so that a lane's 16
// bytes serve two blocks.
template <class State>
__device__ __forceinline__ int position(int column) {
  if constexpr (sizeof(State) == 4) return column;
  return (column & ~31) + 16 * ((column >> 2) & 1) + 4 * ((column & 31) >> 3) + (column & 3);
}
// Where the commit's right operand has it: the lane of column n = g of a product reads four values of two blocks at once.
__device__ __forceinline__ int commit_position(int p) {
  const int j = p / 16, t = (p % 16) / 4, sub = (p % 4) / 2, odd = p % 2;
  return 32 * (j / 2) + 4 * (2 * t + odd) + 2 * (j % 2) + sub;
}

template <int kTokens>
struct Shared {
  float4 taps[3][kDim];
  float before[3][3][kDim];                    // conv inputs before the window, by part
  __nv_bfloat16 inputs[3][kTokens][kDim];      // and in it
  __nv_bfloat16 z[kTokens][kDim];
  float kn[kTokens][kDim], qn[kTokens][kDim], v[kTokens][kDim], decay[kTokens][kDim];
  float keys[kTokens][kPad], queries[kTokens][kPad];  // times the decay from the window's start, by position
  float commit[kTokens][kPadCommit], boundary[kTokens][kPadCommit];
  float commit_decay[kDim], boundary_decay[kDim];
  float key_key[kTokens][kTokens], key_query[kTokens][kTokens];  // [i][r]: token i seen by a later r; 0 elsewhere
  float beta[kTokens];
  float outputs[kTokens][kDim];
  float sums[4][kTokens];
};

__device__ __forceinline__ float high_part(float x) { return __uint_as_float(__float_as_uint(x) & 0xFFFFE000U); }

// d += a b of values split in two; `rest` takes the small products (and may be d).
__device__ __forceinline__ void mma_split(float (&d)[4], float (&rest)[4], const float (&a)[4], const float (&a_low)[4], float b0,
                                          float b1) {
  const float high[2] = {high_part(b0), high_part(b1)};
  const float low[2] = {b0 - high[0], b1 - high[1]};
  mma_tf32(d, a, high);
  mma_tf32(rest, a_low, high);
  mma_tf32(rest, a, low);
}

// Raw memory of a lane's tile and its blocks.
template <class State>
struct Tile;
template <>
struct Tile<float> {
  float4 raw[8][2];
  __device__ __forceinline__ void load(const float* tile, int g, int t) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      raw[j][0] = __ldcs(reinterpret_cast<const float4*>(tile + g * kDim + 16 * j + 4 * t));
      raw[j][1] = __ldcs(reinterpret_cast<const float4*>(tile + (g + 8) * kDim + 16 * j + 4 * t));
    }
  }
  __device__ __forceinline__ void get(int j, float (&x)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i][0] = raw[j][i].x, x[i][1] = raw[j][i].y, x[i][2] = raw[j][i].z, x[i][3] = raw[j][i].w;
  }
  static __device__ __forceinline__ void round(float (&)[2][4]) {}
  static __device__ __forceinline__ void store(float* tile, int g, int t, int j, const float (&x)[2][4]) {
    __stcs(reinterpret_cast<float4*>(tile + g * kDim + 16 * j + 4 * t), make_float4(x[0][0], x[0][1], x[0][2], x[0][3]));
    __stcs(reinterpret_cast<float4*>(tile + (g + 8) * kDim + 16 * j + 4 * t), make_float4(x[1][0], x[1][1], x[1][2], x[1][3]));
  }
};
template <>
struct Tile<__nv_bfloat16> {
  uint4 raw[4][2];
  __device__ __forceinline__ void load(const __nv_bfloat16* tile, int g, int t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      raw[j][0] = __ldcs(reinterpret_cast<const uint4*>(tile + g * kDim + 32 * j + 8 * t));
      raw[j][1] = __ldcs(reinterpret_cast<const uint4*>(tile + (g + 8) * kDim + 32 * j + 8 * t));
    }
  }
  __device__ __forceinline__ void get(int j, float (&x)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t low = j % 2 == 0 ? raw[j / 2][i].x : raw[j / 2][i].z, high = j % 2 == 0 ? raw[j / 2][i].y : raw[j / 2][i].w;
      x[i][0] = low_bf16(low), x[i][1] = high_bf16(low), x[i][2] = low_bf16(high), x[i][3] = high_bf16(high);
    }
  }
  static __device__ __forceinline__ void round(float (&x)[2][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        const uint32_t two = pack_bf16(x[i][k], x[i][k + 1]);
        x[i][k] = low_bf16(two), x[i][k + 1] = high_bf16(two);
      }
    }
  }
  static __device__ __forceinline__ void store(__nv_bfloat16* tile, int g, int t, int j, const float (&x)[2][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      __stcs(reinterpret_cast<uint2*>(tile + (g + 8 * i) * kDim + 32 * (j / 2) + 8 * t + 4 * (j % 2)),
             make_uint2(pack_bf16(x[i][0], x[i][1]), pack_bf16(x[i][2], x[i][3])));
    }
  }
};

// The commit's right operand of blocks 2k and 2k + 1, as a lane holds it.
template <int kGroups>
struct CommitOperand {
  float x[kGroups][2][4];  // [tokens 8n + t, + 4][2 (j % 2) + sub]
  __device__ __forceinline__ void load(const float* factors, int k, int g, int t) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      load4(factors + (8 * n + t) * kPadCommit + 32 * k + 4 * g, x[n][0]);
      load4(factors + (8 * n + t + 4) * kPadCommit + 32 * k + 4 * g, x[n][1]);
    }
  }
};

// x = decay * x + the rank-8n update of block j; u (split) is the left operand.
template <int kGroups>
__device__ __forceinline__ void commit_block(float (&x)[2][4], const float (&u)[kGroups][4], const float (&u_low)[kGroups][4],
                                             const CommitOperand<kGroups>& b, const float* decay, int j, int t) {
  float e[4];
  load4(decay + 16 * j + 4 * t, e);
#pragma unroll
  for (int sub = 0; sub < 2; ++sub) {
    float d[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      mma_split(d, d, u[n], u_low[n], b.x[n][0][2 * (j % 2) + sub], b.x[n][1][2 * (j % 2) + sub]);
    }
    x[0][2 * sub] = fmaf(e[2 * sub], x[0][2 * sub], d[0]);
    x[0][2 * sub + 1] = fmaf(e[2 * sub + 1], x[0][2 * sub + 1], d[1]);
    x[1][2 * sub] = fmaf(e[2 * sub], x[1][2 * sub], d[2]);
    x[1][2 * sub + 1] = fmaf(e[2 * sub + 1], x[1][2 * sub + 1], d[3]);
  }
}

// The commit's right operand: row i is kn_i times the decay of the tokens after it, up to `count`; returns nothing for later rows.
// kn, decay: of this column, token by token.
template <int kTokens>
__device__ __forceinline__ void commit_factors(const float (&kn)[kTokens], const float (&decay)[kTokens], int count, float* factors,
                                               float* total, int p) {
  const int at = commit_position(p);
  float product = 1;
#pragma unroll
  for (int i = kTokens - 1; i >= 0; --i) {
    factors[i * kPadCommit + at] = i < count ? kn[i] * product : 0.0F;
    if (i < count) product *= decay[i];
  }
  total[p] = product;
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
__device__ __forceinline__ void pair_dots(Shared<kTokens>& s, int i, int lane) {
  float w[4], sums[2 * kTokens];  // [2r]: key . key of r; [2r + 1]: key . query
  load4(&s.kn[i][4 * lane], w);
#pragma unroll
  for (int r = 0; r < kTokens; ++r) {
    sums[2 * r] = sums[2 * r + 1] = 0;
    if (r < i) continue;
    float k[4], q[4], d[4];
    load4(&s.kn[r][4 * lane], k);
    load4(&s.qn[r][4 * lane], q);
    if (r > i) {
      load4(&s.decay[r][4 * lane], d);
#pragma unroll
      for (int c = 0; c < 4; ++c) w[c] *= d[c];
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sums[2 * r] = fmaf(w[c], k[c], sums[2 * r]);
      sums[2 * r + 1] = fmaf(w[c], q[c], sums[2 * r + 1]);
    }
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

// What a request's block knows.
struct Place {
  int request, head, heads, first, tile, warp, lane;
  int64_t slot;
  int accepted, boundary, export_slot;
};

// Elements 4 lane .. of row `row` of the conv inputs before the new window when `count` tokens of the old one are taken: row 0 is
// the oldest of the three.
__device__ __forceinline__ void load_history(const KdaSlots& slots, const KdaWindow& window, const Place& p, int part, int row,
                                             int count, float (&x)[4]) {
  const int64_t width = static_cast<int64_t>(p.heads) * kDim, channel = p.head * kDim + 4 * p.lane;
  const int at = count + row;
  if (at < 3) {
    load_conv(slots, p.slot * slots.conv_stride + (part * 3 + at) * width + channel, x);
  } else {
    load4(static_cast<const __nv_bfloat16*>(window.inputs) + p.slot * window.inputs_stride + ((at - 3) * 3 + part) * width + channel,
          x);
  }
}

__device__ __forceinline__ void export_conv(const KdaSlots& slots, const KdaWindow& window, const Place& p) {
  const int64_t width = static_cast<int64_t>(p.heads) * kDim, channel = p.head * kDim + 4 * p.lane;
  for (int i = p.warp; i < 9; i += kWarps) {
    float x[4];
    load_history(slots, window, p, i / 3, i % 3, p.boundary, x);
    store_conv(slots, p.export_slot * slots.conv_stride + i * width + channel, x);
  }
}

// ---- the window's own parts ----

// Asks for the window's rows, 8 bytes a lane.
template <int kTokens>
__device__ __forceinline__ void ask_window(const KdaRows& rows, const Place& p, int row0, int count, Shared<kTokens>& s) {
  const int channel = p.head * kDim + 4 * p.lane;
  for (int token = p.warp; token < count; token += kWarps) {
    const int64_t row = row0 + token;
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      cp_async<8>(shared_address(&s.inputs[part][token][4 * p.lane]),
                  static_cast<const __nv_bfloat16*>(rows.x[part]) + row * rows.x_stride[part] + channel);
    }
    cp_async<8>(shared_address(&s.z[token][4 * p.lane]), static_cast<const __nv_bfloat16*>(rows.z) + row * rows.z_stride + channel);
    if (p.lane == 0) s.beta[token] = sigmoid(load_bf16(rows.beta, row * rows.beta_stride + p.head));
  }
  if (p.lane == 0) {
    for (int token = p.warp; token < kTokens; token += kWarps) {
      if (token >= count) s.beta[token] = 0;
    }
  }
}

// Input `at` of a part: the three before the window, then the window's.
template <int kTokens>
__device__ __forceinline__ void input(const Shared<kTokens>& s, int part, int at, int lane, float (&x)[4]) {
  if (at < 3) {
    load4(&s.before[part][at][4 * lane], x);
  } else {
    load4(&s.inputs[part][at - 3][4 * lane], x);
  }
}

template <int kTokens>
__device__ __forceinline__ void token_factors(const KdaVerifyArgs& args, const Place& p, int count, Shared<kTokens>& s) {
  const KdaWeights& w = args.weights;
  const int channel = p.head * kDim + 4 * p.lane;
#pragma unroll
  for (int n = 0; n < kTokens / kWarps; ++n) {
    const int token = p.warp + n * kWarps;
    if (token >= count) {  // beta 0, key 0, decay 1: it changes nothing
      const float zero[4] = {0, 0, 0, 0}, one[4] = {1, 1, 1, 1};
      store4(&s.kn[token][4 * p.lane], zero);
      store4(&s.qn[token][4 * p.lane], zero);
      store4(&s.v[token][4 * p.lane], zero);
      store4(&s.decay[token][4 * p.lane], one);
      continue;
    }
    float y[4];
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      float x[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) input<kTokens>(s, part, token + i, p.lane, x[i]);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        y[c] = conv_silu(s.taps[part][4 * p.lane + c], x[0][c], x[1][c], x[2][c], x[3][c]);
      }
      if (part < 2) {
        const float scale = norm_scale(y, part == 0 ? kQueryScale : 1.0F);
#pragma unroll
        for (int c = 0; c < 4; ++c) y[c] *= scale;
      }
      store4(part == 0 ? &s.qn[token][4 * p.lane] : part == 1 ? &s.kn[token][4 * p.lane] : &s.v[token][4 * p.lane], y);
    }
    const float rate = expf(__ldg(w.a_log + p.head));
    float bias[4];
    load4(w.dt_bias + channel, bias);
    load4(&s.z[token][4 * p.lane], y);
#pragma unroll
    for (int c = 0; c < 4; ++c) y[c] = decay_factor(y[c] + bias[c], rate, w.lower_bound);
    store4(&s.decay[token][4 * p.lane], y);
  }
}

// u and the outputs of the tile's rows from the window's products with the state.
template <int kGroups>
__device__ __forceinline__ void solve_window(Shared<8 * kGroups>& s, const float (&keys)[kGroups][4], float (&o)[kGroups][4], int count,
                                             int tile_row, int state_row, float* factors, int lane) {
  const int g = lane / 4, t = lane % 4;
  float u[kGroups][4];
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      u[n][e] = s.v[8 * n + 2 * t + e][state_row + g] - keys[n][e];
      u[n][2 + e] = s.v[8 * n + 2 * t + e][state_row + g + 8] - keys[n][2 + e];
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
      const float2 kk = *reinterpret_cast<const float2*>(&s.key_key[i][8 * n + 2 * t]);
      const float2 kq = *reinterpret_cast<const float2*>(&s.key_query[i][8 * n + 2 * t]);
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
      s.outputs[token][tile_row + g] = o[n][e];
      s.outputs[token][tile_row + g + 8] = o[n][2 + e];
      if (token >= count) continue;
      float* to = factors + (token * 3 + 2) * kDim + state_row;
      to[g] = s.beta[token] * u[n][e];
      to[g + 8] = s.beta[token] * u[n][2 + e];
    }
  }
}

// kWindow: false commits alone (args has then no rows, offsets and weights but heads).
template <class State, int kTokens, int kSplit, bool kWindow>
__global__ void __launch_bounds__(kThreads, kTokens == 8 ? 2 : 1) kda_verify(const __grid_constant__ KdaVerifyArgs args) {
  constexpr int kRows = kDim / kSplit, kTiles = kRows / 16, kGroups = kTokens / 8;
  extern __shared__ __align__(128) uint8_t memory[];
  Shared<kTokens>& s = *reinterpret_cast<Shared<kTokens>*>(memory);

  Place p;
  const int tid = static_cast<int>(threadIdx.x);
  const int rank = static_cast<int>(blockIdx.x) % kSplit, pair = static_cast<int>(blockIdx.x) / kSplit;
  p.warp = tid / 32, p.lane = tid % 32;
  p.heads = args.weights.heads;
  p.request = pair / p.heads, p.head = pair % p.heads;
  p.first = rank * kRows;
  const bool early = args.launch.early_state != 0;
  if (!early) pdl_wait();
  p.slot = args.slots.slots[p.request];
  int row0 = 0, count = 0;
  if (kWindow) {
    row0 = args.offsets[p.request];
    count = min(args.offsets[p.request + 1] - row0, kTokens);
  }
  if (p.slot < 0) {
    if (early) pdl_wait();
    if (kWindow) {
      for (int i = tid; i < count * kRows; i += kThreads) {
        static_cast<__nv_bfloat16*>(args.rows.out)[(row0 + i / kRows) * args.rows.out_stride + p.head * kDim + p.first + i % kRows] =
            __float2bfloat16(0.0F);
      }
    }
    return;
  }
  p.accepted = max(0, min(args.commit.accepted[p.request], kTokens));
  p.export_slot = args.commit.export_slots == nullptr ? -1 : args.commit.export_slots[p.request];
  p.boundary = p.export_slot < 0 ? 0 : max(0, min(args.commit.boundary[p.request], p.accepted));
  if (!kWindow && p.accepted == 0 && p.export_slot < 0) return;

  // Loads. Everything that a block overwrites later was read by every block of the cluster before the first barrier.
  const int g = p.lane / 4, t = p.lane % 4;
  const bool tiled = p.warp < kTiles;
  const int tile_row = p.warp * 16, state_row = p.first + tile_row;
  State* const states = static_cast<State*>(args.slots.state);
  const int64_t tile_at = (static_cast<int64_t>(p.head) * kDim + state_row) * kDim;
  State* const tile = states + p.slot * args.slots.state_stride + tile_at;
  float* const factors = args.window.factors + p.slot * args.window.factors_stride +
                         static_cast<int64_t>(p.head) * args.window.max_tokens * 3 * kDim;
  if constexpr (kWindow) {
    for (int i = tid; i < 3 * kDim; i += kThreads) {
      cp_async<16>(shared_address(&s.taps[i / kDim][i % kDim]),
                   reinterpret_cast<const float4*>(args.weights.taps[i / kDim]) + p.head * kDim + i % kDim);
    }
    if (!early) ask_window<kTokens>(args.rows, p, row0, count, s);
  }
  const int column = tid - kThreads / 2;  // of the commit's factors
  float kn[kTokens], decay[kTokens];
  if (column >= 0) {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      kn[i] = i < p.accepted ? factors[i * 3 * kDim + column] : 0.0F;
      decay[i] = i < p.accepted ? factors[(i * 3 + 1) * kDim + column] : 1.0F;
    }
  }
  for (int i = p.warp; i < 9; i += kWarps) {
    float h[4];
    load_history(args.slots, args.window, p, i / 3, i % 3, p.accepted, h);
    store4(&s.before[i / 3][i % 3][4 * p.lane], h);
  }
  Tile<State> x;
  float u[kGroups][4];
  if (tiled) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int token = 8 * n + t + 4 * (e / 2);
        u[n][e] = token < p.accepted ? factors[(token * 3 + 2) * kDim + state_row + g + 8 * (e % 2)] : 0.0F;
      }
    }
    x.load(tile, g, t);
  }
  if constexpr (kWindow) {
    if (early) {
      pdl_wait();
      ask_window<kTokens>(args.rows, p, row0, count, s);
    }
  }
  if (column >= 0) {
    commit_factors<kTokens>(kn, decay, p.accepted, &s.commit[0][0], s.commit_decay, position<State>(column));
    if (p.export_slot >= 0) {
      commit_factors<kTokens>(kn, decay, p.boundary, &s.boundary[0][0], s.boundary_decay, position<State>(column));
    }
  }
  if (p.export_slot >= 0 && rank == 0) export_conv(args.slots, args.window, p);
  cp_async_commit();
  cp_async_wait<0>();
  if constexpr (kSplit > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }

  if constexpr (kWindow) {
    token_factors<kTokens>(args, p, count, s);
    __syncthreads();
    if (tid < kThreads / 2) {
      const int at = position<State>(tid);
      float product = 1;
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        product *= s.decay[i][tid];
        s.keys[i][at] = s.kn[i][tid] * product;
        s.queries[i][at] = s.qn[i][tid] * product;
      }
    }
#pragma unroll
    for (int n = 0; n < kTokens / kWarps; ++n) pair_dots<kTokens>(s, n % 2 == 0 ? p.warp : kTokens - 1 - p.warp, p.lane);
    __syncthreads();
  }

  if (tiled) {
    float u_low[kGroups][4];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float high = high_part(u[n][e]);
        u_low[n][e] = u[n][e] - high;
        u[n][e] = high;
      }
    }
    CommitOperand<kGroups> operand;
    float keys[kGroups][4] = {}, queries[kGroups][4] = {}, keys_rest[kGroups][4] = {}, queries_rest[kGroups][4] = {};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float block[2][4];
      if (p.export_slot >= 0) {
        CommitOperand<kGroups> b;
        b.load(&s.boundary[0][0], j / 2, g, t);
        x.get(j, block);
        commit_block<kGroups>(block, u, u_low, b, s.boundary_decay, j, t);
        Tile<State>::store(states + p.export_slot * args.slots.state_stride + tile_at, g, t, j, block);
      }
      x.get(j, block);
      if (p.accepted > 0) {
        if (j % 2 == 0) operand.load(&s.commit[0][0], j / 2, g, t);
        commit_block<kGroups>(block, u, u_low, operand, s.commit_decay, j, t);
        Tile<State>::round(block);
        Tile<State>::store(tile, g, t, j, block);
      }
      if constexpr (kWindow) {
        float k[kGroups][4], q[kGroups][4];
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          load4(&s.keys[8 * n + g][16 * j + 4 * t], k[n]);
          load4(&s.queries[8 * n + g][16 * j + 4 * t], q[n]);
        }
#pragma unroll
        for (int sub = 0; sub < 2; ++sub) {
          float a[4], a_low[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float value = block[e % 2][2 * sub + e / 2];
            a[e] = high_part(value);
            a_low[e] = value - a[e];
          }
#pragma unroll
          for (int n = 0; n < kGroups; ++n) {
            mma_split(keys[n], keys_rest[n], a, a_low, k[n][2 * sub], k[n][2 * sub + 1]);
            mma_split(queries[n], queries_rest[n], a, a_low, q[n][2 * sub], q[n][2 * sub + 1]);
          }
        }
      }
    }
    if constexpr (kWindow) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) keys[n][e] += keys_rest[n][e], queries[n][e] += queries_rest[n][e];
      }
      solve_window<kGroups>(s, keys, queries, count, tile_row, state_row, factors, p.lane);
    }
  }
  pdl_release();

  // What the next cycle needs: the conv state after the commit, the new window's factors and inputs.
  const int64_t width = static_cast<int64_t>(p.heads) * kDim, channel = p.head * kDim + 4 * p.lane;
  if (rank == 0 && p.accepted > 0) {
    for (int i = p.warp; i < 9; i += kWarps) {
      float h[4];
      load4(&s.before[i / 3][i % 3][4 * p.lane], h);
      store_conv(args.slots, p.slot * args.slots.conv_stride + i * width + channel, h);
    }
  }
  if constexpr (kWindow) {
    if (rank == 0) {
      for (int token = p.warp; token < count; token += kWarps) {
        float h[4];
        load4(&s.kn[token][4 * p.lane], h);
        store4(factors + token * 3 * kDim + 4 * p.lane, h);
        load4(&s.decay[token][4 * p.lane], h);
        store4(factors + (token * 3 + 1) * kDim + 4 * p.lane, h);
#pragma unroll
        for (int part = 0; part < 3; ++part) {
          *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(args.window.inputs) + p.slot * args.window.inputs_stride +
                                    (token * 3 + part) * width + channel) =
              *reinterpret_cast<const uint2*>(&s.inputs[part][token][4 * p.lane]);
        }
      }
    }
    __syncthreads();
    constexpr int kOut = (kRows + 31) / 32, kPer = kTokens / kWarps;
    float sums[kPer];
#pragma unroll
    for (int n = 0; n < kPer; ++n) {
      sums[n] = 0;
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        const int row = p.lane + 32 * i;
        const float o = row < kRows ? s.outputs[p.warp + n * kWarps][row] : 0.0F;
        sums[n] = fmaf(o, o, sums[n]);
      }
      sums[n] = warp_sum(sums[n]);
    }
    if constexpr (kSplit > 1) {
#pragma unroll
      for (int n = 0; n < kPer; ++n) {
        if (p.lane < kSplit) {
          cluster_store(cluster_map(shared_address(&s.sums[rank][p.warp + n * kWarps]), static_cast<uint32_t>(p.lane)), sums[n]);
        }
      }
      cluster_arrive();
      cluster_wait();
#pragma unroll
      for (int n = 0; n < kPer; ++n) {
        sums[n] = 0;
#pragma unroll
        for (int i = 0; i < kSplit; ++i) sums[n] += s.sums[i][p.warp + n * kWarps];
      }
    }
#pragma unroll
    for (int n = 0; n < kPer; ++n) {
      const int token = p.warp + n * kWarps;
      if (token >= count) continue;
      const float scale = rsqrtf(sums[n] * (1.0F / kDim) + args.weights.norm_eps);
      const int64_t row_at = row0 + token, column = p.head * kDim + p.first;
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        const int row = p.lane + 32 * i;
        if (row >= kRows) continue;
        const float gate = load_bf16(args.rows.gate, row_at * args.rows.gate_stride + column + row);
        static_cast<__nv_bfloat16*>(args.rows.out)[row_at * args.rows.out_stride + column + row] =
            __float2bfloat16(s.outputs[token][row] * scale * __ldg(args.weights.norm + p.first + row) * sigmoid(gate));
      }
    }
  }
}

template <class State, int kTokens, int kSplit, bool kWindow>
int launch_one(const KdaVerifyArgs& args, cudaStream_t stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(args.batch * args.weights.heads * kSplit));
  o.block = dim3(kThreads);
  o.cluster = kSplit;
  o.dependent = args.launch.dependent != 0;
  o.shared_bytes = static_cast<int>(sizeof(Shared<kTokens>));
  return launch(kda_verify<State, kTokens, kSplit, kWindow>, o, stream, args);
}

template <class State, int kTokens, bool kWindow>
int launch_split(const KdaVerifyArgs& args, int split, cudaStream_t stream) {
  switch (split) {
    case 1: return launch_one<State, kTokens, 1, kWindow>(args, stream);
    case 2: return launch_one<State, kTokens, 2, kWindow>(args, stream);
    default: return launch_one<State, kTokens, 4, kWindow>(args, stream);
  }
}

template <bool kWindow>
int launch_any(const KdaVerifyArgs& args, int split, cudaStream_t stream) {
  if (args.batch * args.weights.heads == 0) return 0;
  if (args.slots.state_bf16 != 0) {
    return args.window.max_tokens == 8 ? launch_split<__nv_bfloat16, 8, kWindow>(args, split, stream)
                                       : launch_split<__nv_bfloat16, 16, kWindow>(args, split, stream);
  }
  return args.window.max_tokens == 8 ? launch_split<float, 8, kWindow>(args, split, stream)
                                     : launch_split<float, 16, kWindow>(args, split, stream);
}

}  // namespace

int kda_verify_launch(const KdaVerifyArgs& args, int split, cudaStream_t stream) { return launch_any<true>(args, split, stream); }

int kda_commit_launch(const KdaCommitArgs& args, int split, cudaStream_t stream) {
  KdaVerifyArgs a{};
  a.weights.heads = args.heads;
  a.slots = args.slots;
  a.window = args.window;
  a.commit = args.commit;
  a.launch = args.launch;
  a.batch = args.batch;
  return launch_any<false>(a, split, stream);
}

}  // namespace k3::ops::cuda
