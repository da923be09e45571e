// Speculative windows: the commit of the last window and the verification of the next one in one pass over the state
// (kernels.md 5). Products run on the tensor cores in TF32 with every operand split in two (three products), which keeps
// FP32's accuracy to about 1e-6; the triangular system of a window is solved in FP32.
#include <type_traits>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/kda/cuda/kda_verify_cuda.cuh"
#include "k3/ops/kda/cuda/kda_verify_device.cuh"

namespace k3::ops::cuda {
namespace {

template <int kTokens, bool kWindow>
__device__ __forceinline__ VerifyPair load_pair(const KdaVerifyArgs& args, int pair) {
  VerifyPair p{};
  const int request = pair / args.weights.heads;
  p.head = pair - request * args.weights.heads;
  p.slot = args.slots.slots[request];
  p.accepted = max(0, min(args.commit.accepted[request], kTokens));
  p.old_row0 = args.commit.first_rows[request];
  p.export_slot = -1;
  if (args.commit.export_slots != nullptr) {
    p.export_slot = args.commit.export_slots[request];
    p.boundary = max(0, min(args.commit.boundary[request], p.accepted));
  }
  if constexpr (kWindow) {
    p.row0 = args.offsets[request];
    p.count = min(args.offsets[request + 1] - p.row0, kTokens);
  }
  if (p.slot < 0) p.slot = 0, p.dead = p.count, p.accepted = 0, p.count = 0, p.export_slot = -1;
  return p;
}

template <int kTokens, class Block>
__device__ __forceinline__ VerifyShared<kTokens>& shared_of(Block& block) {
  if constexpr (std::is_same_v<Block, BulkBlock>) {
    return block.shared;
  } else {
    return block;
  }
}

template <int kTokens>
__device__ __forceinline__ float* u_of(const KdaVerifyArgs& args, const VerifyPair& p) {
  return args.window.u + p.slot * args.window.u_stride + p.head * (kTokens * kDim);
}
__device__ __forceinline__ int64_t conv_at(const KdaVerifyArgs& args, int slot, int head, int row) {
  return slot * args.slots.conv_stride + (row * args.weights.heads + head) * kDim;
}
// Row `row` of `rows`, from `channel` on.
__device__ __forceinline__ const __nv_bfloat16* row_of(const void* rows, int64_t stride, int row, int channel) {
  return static_cast<const __nv_bfloat16*>(rows) + row * stride + channel;
}
// Inputs q, k or v (part) of a token of the last window, from the head's channel `channel` on.
__device__ __forceinline__ const __nv_bfloat16* old_row(const KdaVerifyArgs& args, const VerifyPair& p, int part, int token,
                                                        int channel) {
  return row_of(args.commit.x[part], args.commit.x_stride[part], p.old_row0 + token, p.head * kDim + channel);
}

// Row `row` (3 part + 0 for the oldest ..) of the conv state after `count` tokens of the window, 4 values from `channel`.
__device__ __forceinline__ void conv_row(const KdaVerifyArgs& args, const VerifyPair& p, int row, int count, int channel,
                                         float (&x)[4]) {
  const int part = row / 3, at = count + row % 3;
  if (at < 3) {
    load_conv(args.slots, conv_at(args, p.slot, p.head, part * 3 + at) + channel, x);
  } else {
    load4(old_row(args, p, part, at - 3, channel), x);
  }
}

// Asks for the weights of a head: what a block can do before it knows the numbers of its request.
template <int kTokens, bool kWindow>
__device__ __forceinline__ void ask_weights(const KdaWeights& w, int head, const VerifyLane& l, VerifyShared<kTokens>& s) {
  const int tid = static_cast<int>(threadIdx.x), channel = head * kDim, c = tid % kDim;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int part = 2 * i + l.warp / 4;
    if (part < 3 && (kWindow || part == 1))
      cp_async<16>(shared_address(&s.taps[part][32 * (c % 4) + c / 4]), w.taps[part] + (channel + c) * 4);
  }
  if (tid < 32) cp_async<16>(shared_address(&s.bias[4 * tid]), w.dt_bias + channel + 4 * tid);
  if (kWindow && tid < 32) cp_async<16>(shared_address(&s.norm[4 * tid]), w.norm + 4 * tid);
}

// Asks for everything but weights, state and new rows; the conv inputs before the window are those of conv state and old rows.
// Rows 9 .. 11 are the inputs of keys before the old window.
template <int kTokens, bool kWindow>
__device__ __forceinline__ void ask(const KdaVerifyArgs& args, const VerifyPair& p, const VerifyLane& l,
                                    VerifyShared<kTokens>& s) {
  const bool upper = l.lane >= 16;
  const int chunk = 8 * (l.lane % 16);
  const KdaCommit& old = args.commit;
#pragma unroll
  for (int n = 0; n < kTokens / kVerifyWarps; ++n) {
    const int token = l.warp + n * kVerifyWarps;
    if (token >= p.accepted) continue;
    cp_async<16>(shared_address(&s.u[token][4 * l.lane]), u_of<kTokens>(args, p) + token * kDim + 4 * l.lane);
    cp_async<16>(shared_address(upper ? &s.old_z[token][chunk] : &s.old_keys[3 + token][chunk]),
                 row_of(upper ? old.z : old.x[1], upper ? old.z_stride : old.x_stride[1], p.old_row0 + token,
                        p.head * kDim + chunk));
  }
  const int row = 2 * l.warp + upper;
  if (row >= 12) return;
  const int part = row < 9 ? row / 3 : 1, at = row < 9 ? p.accepted + row % 3 : row - 9;
  const void* from =
      static_cast<const __nv_bfloat16*>(args.slots.conv) + conv_at(args, p.slot, p.head, part * 3 + at) + chunk;
  if (at >= 3) from = old_row(args, p, part, at - 3, chunk);
  if (at >= 3 || args.slots.conv_bf16 != 0)
    cp_async<16>(shared_address(row < 9 ? &s.rows[part][row % 3][chunk] : &s.old_keys[row - 9][chunk]), from);
}

// Asks for the window's rows: a warp a token, a half of it a row. beta: the logits of the warp's tokens (lane 0).
template <int kTokens>
__device__ __forceinline__ void ask_rows(const KdaRows& rows, const VerifyPair& p, const VerifyLane& l,
                                         VerifyShared<kTokens>& s, float (&beta)[kTokens / kVerifyWarps]) {
  const bool upper = l.lane >= 16;
  const int chunk = 8 * (l.lane % 16), channel = p.head * kDim + chunk;
#pragma unroll
  for (int n = 0; n < kTokens / kVerifyWarps; ++n) {
    const int token = l.warp + n * kVerifyWarps;
    if (token >= p.count) continue;
    const int row = p.row0 + token;
    const auto copy = [&](int kind, const void* from, int64_t stride) {
      cp_async<16>(shared_address(&s.rows[kind][3 + token][chunk]), row_of(from, stride, row, channel));
    };
    copy(upper ? 1 : 0, upper ? rows.x[1] : rows.x[0], upper ? rows.x_stride[1] : rows.x_stride[0]);
    copy(upper ? 3 : 2, upper ? rows.z : rows.x[2], upper ? rows.z_stride : rows.x_stride[2]);
    if (!upper) copy(4, rows.gate, rows.gate_stride);
    if (l.lane == 0) beta[n] = load_bf16(rows.beta, row * rows.beta_stride + p.head);
  }
}

// The conv state after the commit.
template <int kTokens>
__device__ __forceinline__ void store_tails(const KdaVerifyArgs& args, const VerifyPair& p, const VerifyLane& l,
                                            const VerifyShared<kTokens>& s) {
  const int chunk = 8 * (l.lane % 16), row = 2 * l.warp + l.lane / 16;
  if (p.accepted == 0 || row >= 9) return;
  const int64_t to = conv_at(args, p.slot, p.head, row) + chunk;
  const __nv_bfloat16* from = &s.rows[row / 3][row % 3][chunk];
  if (args.slots.conv_bf16 != 0) {
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(args.slots.conv) + to) = *reinterpret_cast<const uint4*>(from);
    return;
  }
  for (int i = 0; i < 8; i += 4) {
    float x[4];
    if (p.accepted + row % 3 < 3) {
      load4(&s.before[row][chunk + i], x);
    } else {
      load4(from + i, x);
    }
    store4(static_cast<float*>(args.slots.conv) + to + i, x);
  }
}

template <int kTokens>
__device__ __forceinline__ void store_u(const KdaVerifyArgs& args, const VerifyPair& p, const VerifyLane& l,
                                        const VerifyShared<kTokens>& s) {
#pragma unroll
  for (int n = 0; n < kTokens / kVerifyWarps; ++n) {
    const int token = l.warp + n * kVerifyWarps;
    if (token >= p.count) continue;
    __stcs(reinterpret_cast<float4*>(u_of<kTokens>(args, p) + token * kDim) + l.lane,
           *(reinterpret_cast<const float4*>(s.u[token]) + l.lane));
  }
}

// Norm and gate of the outputs, a warp a token, four values a lane.
template <int kTokens>
__device__ __forceinline__ void store_outputs(const KdaVerifyArgs& args, const VerifyPair& p, const VerifyLane& l,
                                              const VerifyShared<kTokens>& s) {
  constexpr int kPer = kTokens / kVerifyWarps;
  const int at = 4 * l.lane;
  float o[kPer][4], sums[kPer], norm[4];
  load4(&s.norm[at], norm);
#pragma unroll
  for (int n = 0; n < kPer; ++n) {
    load4(&s.v[l.warp + n * kVerifyWarps][at], o[n]);
    sums[n] = warp_sum(sum_of_squares(o[n]));
  }
#pragma unroll
  for (int n = 0; n < kPer; ++n) {
    const int token = l.warp + n * kVerifyWarps;
    if (token >= p.count) continue;
    const float scale = rsqrtf(sums[n] * (1.0F / kDim) + args.weights.norm_eps);
    float gate[4];
    load4(&s.rows[4][3 + token][at], gate);
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] *= scale * norm[i] * sigmoid(gate[i]);
    auto* const out = static_cast<__nv_bfloat16*>(args.rows.out) + (p.row0 + token) * args.rows.out_stride + p.head * kDim;
    *reinterpret_cast<uint2*>(out + at) = make_uint2(pack_bf16(o[n][0], o[n][1]), pack_bf16(o[n][2], o[n][3]));
  }
}

// kWindow: false commits alone (args has then no rows and offsets, and of the weights what keys and decays take). kBulk: three quarters
// of an FP32 state come by the copy engine; states: its map.
template <class State, int kTokens, bool kWindow, bool kBulk>
__global__ void __launch_bounds__(kVerifyThreads, kTokens == 8 ? 2 : 1)
    kda_verify(const __grid_constant__ KdaVerifyArgs args, const __grid_constant__ CUtensorMap states) {
  using X = std::conditional_t<kBulk, BulkTile, Tile<State>>;
  constexpr int kGroups = kTokens / 8, kPer = kTokens / kVerifyWarps;
  static_assert(kVerifyWarps * 16 == kDim);
  K3_SHARED_BYTES(memory, 1024);
  auto& block = *reinterpret_cast<std::conditional_t<kBulk, BulkBlock, VerifyBlock<State, kTokens>>*>(memory);
  auto& s = shared_of<kTokens>(block);

  int tid = 0, g = 0, t = 0;
  VerifyLane l;
  // Read again in each stretch between barriers: kept in registers there are too many, and what is spilled comes back from L2.
  const auto who = [&] {
    tid = thread_again();
    l.warp = tid / 32, l.lane = tid % 32;
    g = l.lane / 4, t = l.lane % 4;
  };
  who();
  const bool conv_bf16 = args.slots.conv_bf16 != 0;
  const auto tile_of = [&](int slot, int head) {
    return hold(static_cast<State*>(args.slots.state) + slot * args.slots.state_stride + head * (kDim * kDim) + l.warp * 16 * kDim +
                X::lane_offset(g, t));
  };
  const bool early = args.launch.early_state != 0;
  const int own_head = static_cast<int>(blockIdx.x) % args.weights.heads;
  if constexpr (kWindow) ask_weights<kTokens, kWindow>(args.weights, own_head, l, s);
  float beta[kPer] = {}, a_log = __ldg(args.weights.a_log + own_head);
  if (!early) pdl_wait();
  const VerifyPair p = load_pair<kTokens, kWindow>(args, static_cast<int>(blockIdx.x));
  if (!kWindow && p.accepted == 0 && p.export_slot < 0) return;
  State* const tile = tile_of(p.slot, p.head);
  if constexpr (!kWindow) ask_weights<kTokens, kWindow>(args.weights, own_head, l, s);
  if (kWindow && !early) ask_rows<kTokens>(args.rows, p, l, s, beta);
  ask<kTokens, kWindow>(args, p, l, s);
  X x;
  const auto ask_first = [&] {
    if constexpr (kBulk) {
      if (tid != kVerifyThreads - 32) return;
      const uint32_t full = shared_address(&block.full);
      if ((shared_address(memory) & 1023) != 0) __trap();
      mbar_init(full, 1);
      mbar_init_fence();
      mbar_expect(full, kBoxes * kBoxBytes);
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) tma_load_3d(shared_address(block.boxes[i]), &states, 64 * i, p.head * kDim, p.slot, full);
    } else {
      x.ring = block.ring[0] + tid;
      x.ask_first(tile);
    }
  };
  const auto wait_for_state = [&] {
    cp_async_wait<0>();
    if constexpr (kBulk) mbar_wait(shared_address(&block.full), 0);
  };
  const auto find_state = [&] {
    if constexpr (kBulk) {
      x.find(block.boxes[0], l.warp, g, t);
    } else {
      x.ring = block.ring[0] + tid;
    }
  };
  if (early) {
    ask_first();
    pdl_wait();
    if constexpr (kWindow) ask_rows<kTokens>(args.rows, p, l, s, beta);
  }
  cp_async_commit();
  if (!early) ask_first();
  cp_async_commit();

  if (!conv_bf16) {
    for (int row = l.warp; row < 12; row += kVerifyWarps) {
      float h[4];
      if (row < 9 && p.accepted + row % 3 >= 3) continue;
      conv_row(args, p, row < 9 ? row : row - 6, row < 9 ? p.accepted : 0, 4 * l.lane, h);
      store4(&s.before[row][4 * l.lane], h);
    }
  }
  for (int i = tid; i < p.dead * kDim; i += kVerifyThreads) {
    const int64_t at = (p.row0 + i / kDim) * args.rows.out_stride + p.head * kDim + i % kDim;
    static_cast<__nv_bfloat16*>(args.rows.out)[at] = __float2bfloat16(0.0F);
  }
  if (kWindow && tid == 0) s.pair = p;
  cp_async_wait<1>();  // all but the state's blocks
  __syncthreads();

  who();
  const uint32_t mask = args.batch >= 0 ? 0xFFFFE000U : 0;
  const int tile_row = l.warp * 16;
  Left u[kGroups];
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int token = 8 * n + t + 4 * (e / 2);
      const bool take = token < p.accepted;
      u[n].set(e, take ? s.u[token][tile_row + X::first_row(g) + 8 * (e % 2)] : 0.0F, mask);
    }
  }
  const float rate = expf(a_log);
  if (conv_bf16) {
    token_factors<kTokens, kWindow, true>(args.weights.lower_bound, rate, p, l, beta, s);
  } else {
    token_factors<kTokens, kWindow, false>(args.weights.lower_bound, rate, p, l, beta, s);
  }
  x.ask_rest(tile);
  if (p.export_slot >= 0) {
    wait_for_state();
    find_state();
    __syncthreads();
    if (tid >= kVerifyThreads / 2) commit_column<State, kTokens>(s, tid - kVerifyThreads / 2, p.boundary);
    __syncthreads();
    State* const to = tile_of(p.export_slot, p.head);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float part[2][4];
      x.take(j, part);
      commit_block<kGroups>(part, u, &s.commit[t][2 * g], s.commit_decay + 4 * t, j);
      X::store(to, j, part);
    }
    for (int row = l.warp; row < 9; row += kVerifyWarps) {
      float h[4];
      conv_row(args, p, row, p.boundary, 4 * l.lane, h);
      store_conv(args.slots, conv_at(args, p.export_slot, p.head, row) + 4 * l.lane, h);
    }
    __syncthreads();
  }
  store_tails<kTokens>(args, p, l, s);
  __syncthreads();
  who();
  if (kWindow && tid < kVerifyThreads / 2) window_column<State, kTokens>(s, tid);
  if (tid >= kVerifyThreads / 2 && p.accepted > 0) commit_column<State, kTokens>(s, tid - kVerifyThreads / 2, p.accepted);
  if constexpr (kWindow) {
#pragma unroll
    for (int n = 0; n < kPer; ++n) pair_dots<kTokens>(s, l.warp + n * kVerifyWarps, l.lane);
  }
  wait_for_state();
  __syncthreads();

  who();
  find_state();
  const float* const commit_right = &s.commit[t][2 * g];
  const float* const commit_decay = s.commit_decay + 4 * t;
  const float* const window = &s.window[0][g][2 * t];
  float keys[kGroups][4] = {}, queries[kGroups][4] = {}, keys_rest[2][kGroups][4] = {};
  // Without a jump from block to block, so that their chains of products run side by side.
  const auto walk = [&](auto commits) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float part[2][4];
      x.take(j, part);
      if constexpr (commits) {
        commit_block<kGroups>(part, u, commit_right, commit_decay, j);
        X::store(tile, j, part);
      }
      if constexpr (kWindow)
        window_block<kGroups, sizeof(State) == 2>(part, keys, keys_rest, queries, window, j, mask);
    }
  };
  if (p.accepted > 0) {
    walk(std::true_type{});
  } else {
    walk(std::false_type{});
  }
  if constexpr (kWindow) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) keys[n][e] += keys_rest[0][n][e] + keys_rest[1][n][e];
    }
    who();
    solve_window<kGroups>(s, keys, queries, l.warp * 16 + X::first_row(g), l.lane);
  }
  pdl_release();
  if constexpr (kWindow) {
    __syncthreads();
    who();
    const VerifyPair same = s.pair;  // like `who`: not kept in registers
    store_u<kTokens>(args, same, l, s);
    store_outputs<kTokens>(args, same, l, s);
  }
}

template <class State, int kTokens, bool kWindow, bool kBulk>
int launch_one(const KdaVerifyArgs& args, const CUtensorMap& states, cudaStream_t stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(args.batch * args.weights.heads));
  o.block = dim3(kVerifyThreads);
  o.dependent = args.launch.dependent != 0;
  o.shared_bytes = static_cast<int>(kBulk ? sizeof(BulkBlock) : sizeof(VerifyBlock<State, kTokens>));
  return launch(kda_verify<State, kTokens, kWindow, kBulk>, o, stream, args, states);
}

// states null: without the copy engine.
template <bool kWindow>
int launch_any(const KdaVerifyArgs& args, const CUtensorMap* states, cudaStream_t stream) {
  if (args.batch * args.weights.heads == 0) return 0;
  const CUtensorMap none{};
  if constexpr (kWindow) {
    if (states != nullptr) return launch_one<float, 8, true, true>(args, *states, stream);
  }
  if (args.slots.state_bf16 != 0) {
    return args.window.max_tokens == 8 ? launch_one<__nv_bfloat16, 8, kWindow, false>(args, none, stream)
                                       : launch_one<__nv_bfloat16, 16, kWindow, false>(args, none, stream);
  }
  return args.window.max_tokens == 8 ? launch_one<float, 8, kWindow, false>(args, none, stream)
                                     : launch_one<float, 16, kWindow, false>(args, none, stream);
}

}  // namespace

int kda_verify_launch(const KdaVerifyArgs& args, const CUtensorMap* states, cudaStream_t stream) {
  return launch_any<true>(args, states, stream);
}

int kda_commit_launch(const KdaCommitArgs& args, cudaStream_t stream) {
  KdaVerifyArgs a{};
  a.weights = args.weights;
  a.slots = args.slots;
  a.window = args.window;
  a.commit = args.commit;
  a.launch = args.launch;
  a.batch = args.batch;
  return launch_any<false>(a, nullptr, stream);
}

}  // namespace k3::ops::cuda
