// Speculative windows: the commit of the last window and the verification of the next one in one pass over the state (kernels.md 5).
// Products run on the tensor cores in TF32 with every operand split in two (three products), which keeps FP32's accuracy to about
// 1e-6; the triangular system of a window is solved in FP32.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/kda/cuda/kda_verify_cuda.cuh"
#include "k3/ops/kda/cuda/kda_verify_device.cuh"

namespace k3::ops::cuda {
namespace {

// Elements 4 lane .. of row `row` (0: oldest of three) of part `part` of the conv inputs when `count` tokens of the window are taken.
__device__ __forceinline__ void export_conv(const KdaSlots& slots, const KdaWindow& window, const VerifyPlace& p) {
  const int64_t width = static_cast<int64_t>(p.heads) * kDim, channel = p.head * kDim + 4 * p.lane;
  for (int i = p.warp; i < 9; i += kVerifyWarps) {
    float x[4];
    const int part = i / 3, at = p.boundary + i % 3;
    if (at < 3) {
      load_conv(slots, p.slot * slots.conv_stride + (part * 3 + at) * width + channel, x);
    } else {
      load4(static_cast<const __nv_bfloat16*>(window.inputs) + p.slot * window.inputs_stride + ((at - 3) * 3 + part) * width + channel, x);
    }
    store_conv(slots, p.export_slot * slots.conv_stride + i * width + channel, x);
  }
}

// Asks for everything but the state and the rows; the conv inputs before the window are those of conv state and old window.
template <int kTokens, bool kWindow>
__device__ __forceinline__ void ask(const KdaVerifyArgs& args, const VerifyPlace& p, const float* factors, VerifyShared<kTokens>& s) {
  const int tid = static_cast<int>(threadIdx.x);
  const uint32_t old = shared_address(s.old_factors);
  const float* const mine = hold(factors + 4 * tid);
#pragma unroll
  for (int i = 0; i < kTokens * 96 / kVerifyThreads; ++i) {
    const int at = i * kVerifyThreads;
    if (at + tid < p.accepted * 96) cp_async<16>(old + 16 * tid + 16 * at, mine + 4 * at);
  }
  if constexpr (kWindow) {
    const int channel = p.head * kDim, c = tid % kDim;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int part = 2 * i + p.warp / 4;
      if (part < 3) cp_async<16>(shared_address(&s.taps[part][32 * (c % 4) + c / 4]), args.weights.taps[part] + (channel + c) * 4);
    }
    if (tid < 32) cp_async<16>(shared_address(&s.bias[4 * tid]), args.weights.dt_bias + channel + 4 * tid);
  }
  const int row = 2 * p.warp + p.lane / 16, chunk = 8 * (p.lane % 16);
  if (row >= 9) return;
  const int part = row / 3, i = row % 3, at = p.accepted + i;
  const int64_t width = static_cast<int64_t>(p.heads) * kDim, channel = p.head * kDim + chunk;
  const int64_t in_state = p.slot * args.slots.conv_stride + (part * 3 + at) * width + channel;
  const uint32_t to = shared_address(&s.rows[part][i][chunk]);
  if (at >= 3) {
    const int64_t in_window = p.slot * args.window.inputs_stride + ((at - 3) * 3 + part) * width + channel;
    cp_async<16>(to, static_cast<const __nv_bfloat16*>(args.window.inputs) + in_window);
  } else if (p.conv_bf16) {
    cp_async<16>(to, static_cast<const __nv_bfloat16*>(args.slots.conv) + in_state);
  } else {
    const float* from = static_cast<const float*>(args.slots.conv) + in_state;
    cp_async<16>(shared_address(&s.before[row][chunk]), from);
    cp_async<16>(shared_address(&s.before[row][chunk + 4]), from + 4);
  }
}

// Asks for the window's rows: a warp a token, a half of it a row.
template <int kTokens>
__device__ __forceinline__ void ask_rows(const KdaRows& rows, const VerifyPlace& p, int64_t row0, int count, VerifyShared<kTokens>& s) {
  const bool upper = p.lane >= 16;
  const int chunk = 8 * (p.lane % 16), channel = p.head * kDim + chunk;
#pragma unroll
  for (int n = 0; n < kTokens / kVerifyWarps; ++n) {
    const int token = p.warp + n * kVerifyWarps;
    if (token >= count) continue;
    const int64_t row = row0 + token;
    const auto copy = [&](int kind, const void* from, int64_t stride) {
      cp_async<16>(shared_address(&s.rows[kind][3 + token][chunk]), static_cast<const __nv_bfloat16*>(from) + row * stride + channel);
    };
    copy(upper ? 1 : 0, upper ? rows.x[1] : rows.x[0], upper ? rows.x_stride[1] : rows.x_stride[0]);
    copy(upper ? 3 : 2, upper ? rows.z : rows.x[2], upper ? rows.z_stride : rows.x_stride[2]);
    if (!upper) copy(4, rows.gate, rows.gate_stride);
  }
  if (p.warp == 0 && p.lane < kTokens) {
    s.beta[p.lane] = p.lane < count ? sigmoid(load_bf16(rows.beta, (row0 + p.lane) * rows.beta_stride + p.head)) : 0.0F;
  }
}

// What the next cycle needs: the conv state after the commit, the new window's factors and inputs.
template <int kTokens>
__device__ __forceinline__ void store_conv_state(const KdaSlots& slots, const VerifyPlace& p, const VerifyShared<kTokens>& s) {
  const int row = 2 * p.warp + p.lane / 16, chunk = 8 * (p.lane % 16);
  if (row >= 9) return;
  const int64_t to = p.slot * slots.conv_stride + static_cast<int64_t>(row) * p.heads * kDim + p.head * kDim + chunk;
  const __nv_bfloat16* from = &s.rows[row / 3][row % 3][chunk];
  if (p.conv_bf16) {
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(slots.conv) + to) = *reinterpret_cast<const uint4*>(from);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    float x[4];
    if (p.accepted + row % 3 < 3) {
      load4(&s.before[row][chunk + i], x);
    } else {
      load4(from + i, x);
    }
    store4(static_cast<float*>(slots.conv) + to + i, x);
  }
}
template <int kTokens, int kRows>
__device__ __forceinline__ void store_window(const KdaWindow& window, const VerifyPlace& p, bool all, int count, float* factors,
                                             const VerifyShared<kTokens>& s) {
  const int half = p.lane / 16, chunk = 8 * (p.lane % 16);
  const int64_t width = static_cast<int64_t>(p.heads) * kDim;
#pragma unroll
  for (int n = 0; n < kTokens / kVerifyWarps; ++n) {
    const int token = p.warp + n * kVerifyWarps;
    if (token >= count) continue;
    float4* const to = reinterpret_cast<float4*>(factors + token * 3 * kDim) + p.lane;
    const float4* const from = reinterpret_cast<const float4*>(&s.factors[token][0][0]) + p.lane;
    if (p.lane < kRows / 4) __stcs(to + 64 + p.first / 4, from[64 + p.first / 4]);
    if (!all) continue;
    __stcs(to, from[0]);
    __stcs(to + 32, from[32]);
    auto* const inputs =
        static_cast<__nv_bfloat16*>(window.inputs) + p.slot * window.inputs_stride + token * 3 * width + p.head * kDim + chunk;
    __stcs(reinterpret_cast<uint4*>(inputs + half * width), *reinterpret_cast<const uint4*>(&s.rows[half][3 + token][chunk]));
    if (half == 0) __stcs(reinterpret_cast<uint4*>(inputs + 2 * width), *reinterpret_cast<const uint4*>(&s.rows[2][3 + token][chunk]));
  }
}

// Norm and gate of the outputs, a warp a token; the rows of V of the cluster's blocks share the norm.
template <int kTokens, int kSplit>
__device__ __forceinline__ void store_outputs(const KdaVerifyArgs& args, const VerifyPlace& p, int rank, int64_t row0, int count,
                                              VerifyShared<kTokens>& s) {
  constexpr int kRows = kDim / kSplit, kOut = kRows / 32, kPer = kTokens / kVerifyWarps;
  float sums[kPer];
#pragma unroll
  for (int n = 0; n < kPer; ++n) {
    sums[n] = 0;
#pragma unroll
    for (int i = 0; i < kOut; ++i) {
      const float o = s.outputs()[p.warp + n * kVerifyWarps][p.lane + 32 * i];
      sums[n] = fmaf(o, o, sums[n]);
    }
    sums[n] = warp_sum(sums[n]);
  }
  if constexpr (kSplit > 1) {
#pragma unroll
    for (int n = 0; n < kPer; ++n) {
      const uint32_t mine = shared_address(&s.sums[rank][p.warp + n * kVerifyWarps]);
      if (p.lane < kSplit) cluster_store(cluster_map(mine, static_cast<uint32_t>(p.lane)), sums[n]);
    }
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (int n = 0; n < kPer; ++n) {
      sums[n] = 0;
#pragma unroll
      for (int i = 0; i < kSplit; ++i) sums[n] += s.sums[i][p.warp + n * kVerifyWarps];
    }
  }
#pragma unroll
  for (int n = 0; n < kPer; ++n) {
    const int token = p.warp + n * kVerifyWarps;
    if (token >= count) continue;
    const float scale = rsqrtf(sums[n] * (1.0F / kDim) + args.weights.norm_eps);
    auto* const out = static_cast<__nv_bfloat16*>(args.rows.out) + (row0 + token) * args.rows.out_stride + p.head * kDim + p.first;
#pragma unroll
    for (int i = 0; i < kOut; ++i) {
      const int row = p.lane + 32 * i;
      const float gate = sigmoid(__bfloat162float(s.rows[4][3 + token][p.first + row]));
      out[row] = __float2bfloat16(s.outputs()[token][row] * scale * __ldg(args.weights.norm + p.first + row) * gate);
    }
  }
}

// kWindow: false commits alone (args has then no rows, offsets and weights but heads).
template <class State, int kTokens, int kSplit, bool kWindow>
__global__ void __launch_bounds__(kVerifyThreads, kTokens == 8 ? 2 : 1) kda_verify(const __grid_constant__ KdaVerifyArgs args) {
  constexpr int kRows = kDim / kSplit, kTiles = kRows / 16, kGroups = kTokens / 8;
  extern __shared__ __align__(128) uint8_t memory[];
  VerifyShared<kTokens>& s = *reinterpret_cast<VerifyShared<kTokens>*>(memory);

  VerifyPlace p;
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
  if constexpr (kWindow) {
    row0 = args.offsets[p.request];
    count = min(args.offsets[p.request + 1] - row0, kTokens);
  }
  if (p.slot < 0) {
    if (early) pdl_wait();
    for (int i = tid; kWindow && i < count * kRows; i += kVerifyThreads) {
      const int64_t at = (row0 + i / kRows) * args.rows.out_stride + p.head * kDim + p.first + i % kRows;
      static_cast<__nv_bfloat16*>(args.rows.out)[at] = __float2bfloat16(0.0F);
    }
    return;
  }
  p.accepted = max(0, min(args.commit.accepted[p.request], kTokens));
  p.export_slot = args.commit.export_slots == nullptr ? -1 : args.commit.export_slots[p.request];
  p.boundary = p.export_slot < 0 ? 0 : max(0, min(args.commit.boundary[p.request], p.accepted));
  p.conv_bf16 = args.slots.conv_bf16 != 0;
  if (!kWindow && p.accepted == 0 && p.export_slot < 0) return;

  // Loads. Everything that a block overwrites later was read by every block of the cluster before the first barrier.
  const int g = p.lane / 4, t = p.lane % 4;
  const bool tiled = p.warp < kTiles;
  const int tile_row = p.warp * 16, state_row = p.first + tile_row;
  State* const states = static_cast<State*>(args.slots.state);
  const int64_t lane_at = (static_cast<int64_t>(p.head) * kDim + state_row) * kDim + Tile<State>::lane_offset(g, t);
  State* const tile = hold(states + p.slot * args.slots.state_stride + lane_at);
  float* const factors =
      args.window.factors + p.slot * args.window.factors_stride + static_cast<int64_t>(p.head) * args.window.max_tokens * 3 * kDim;
  ask<kTokens, kWindow>(args, p, factors, s);
  if (kWindow && !early) ask_rows<kTokens>(args.rows, p, row0, count, s);
  Tile<State> x;
  if (tiled) x.load(tile);
  if constexpr (kWindow) {
    if (early) {
      pdl_wait();
      ask_rows<kTokens>(args.rows, p, row0, count, s);
    }
    p.rate = expf(__ldg(args.weights.a_log + p.head));
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  if constexpr (kSplit > 1) {
    cluster_arrive();
    cluster_wait();
  }

  const uint32_t mask = args.batch >= 0 ? 0xFFFFE000U : 0;
  const float* const commit_right = &s.commit[0][t][2 * g];
  const float* const commit_decay = s.commit_decay + 4 * t;
  Left u[kGroups];
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int token = 8 * n + t + 4 * (e / 2);
      const bool take = tiled && token < p.accepted;
      u[n].set(e, take ? s.old_factors[token][2][state_row + g + 8 * (e % 2)] : 0.0F, mask);
    }
  }
  if (p.export_slot >= 0) {
    if (tid >= kVerifyThreads / 2) commit_column<State, kTokens>(s, tid - kVerifyThreads / 2, p.boundary);
    __syncthreads();
    if (tiled) {
      State* const to = hold(states + p.export_slot * args.slots.state_stride + lane_at);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float block[2][4];
        x.get(j, block);
        commit_block<kGroups>(block, u, commit_right, commit_decay, j);
        Tile<State>::store(to, j, block);
      }
    }
    if (rank == 0) export_conv(args.slots, args.window, p);
    __syncthreads();
  }
  if constexpr (kWindow) {
    token_factors<kTokens>(args.weights.lower_bound, p, count, s);
    __syncthreads();
    if (tid < kVerifyThreads / 2) window_column<State, kTokens>(s, tid);
  }
  if (tid >= kVerifyThreads / 2 && p.accepted > 0) commit_column<State, kTokens>(s, tid - kVerifyThreads / 2, p.accepted);
  if constexpr (kWindow) {
#pragma unroll
    for (int n = 0; n < kTokens / kVerifyWarps; ++n) pair_dots<kTokens>(s, n % 2 == 0 ? p.warp : kTokens - 1 - p.warp, p.lane);
  }
  __syncthreads();

  if (tiled) {
    const float* const window = &s.window[0][g][2 * t];
    float keys[kGroups][4] = {}, queries[kGroups][4] = {}, keys_rest[kGroups][4] = {}, queries_rest[kGroups][4] = {};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float block[2][4];
      x.get(j, block);
      if (p.accepted > 0) {
        commit_block<kGroups>(block, u, commit_right, commit_decay, j);
        Tile<State>::store(tile, j, block);
      }
      if constexpr (kWindow) {
        window_block<kGroups, sizeof(State) == 2>(block, keys, keys_rest, queries, queries_rest, window, j, mask);
      }
    }
    if constexpr (kWindow) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) keys[n][e] += keys_rest[n][e], queries[n][e] += queries_rest[n][e];
      }
      solve_window<kGroups>(s, keys, queries, tile_row, state_row, p.lane);
    }
  }
  pdl_release();
  if (rank == 0 && p.accepted > 0) store_conv_state<kTokens>(args.slots, p, s);
  if constexpr (kWindow) {
    __syncthreads();
    store_window<kTokens, kRows>(args.window, p, rank == 0, count, factors, s);
    store_outputs<kTokens, kSplit>(args, p, rank, row0, count, s);
  }
}

template <class State, int kTokens, int kSplit, bool kWindow>
int launch_one(const KdaVerifyArgs& args, cudaStream_t stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(args.batch * args.weights.heads * kSplit));
  o.block = dim3(kVerifyThreads);
  o.cluster = kSplit;
  o.dependent = args.launch.dependent != 0;
  o.shared_bytes = static_cast<int>(sizeof(VerifyShared<kTokens>));
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

int kda_verify_launch(const KdaVerifyArgs& args, int split, cudaStream_t stream) {
  return launch_any<true>(args, split, stream);
}

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
