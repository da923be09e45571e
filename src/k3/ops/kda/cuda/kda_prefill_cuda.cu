// Token by token, any gate: a block owns 32 value rows of one (sequence, head), four threads a row, state in registers.
// Factors of 16 tokens at a time are formed in shared memory by all four warps.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/kda/cuda/kda_prefill_state.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kTile = 16, kRows = 32, kThreads = 128;

struct Tile {
  float decay[kTile][kDim], key[kTile][kDim], query[kTile][kDim];
  float value[kTile][kRows], out[kTile][kRows];
  float beta[kTile], match[kTile];  // match: key . query
  KdaCuts cuts;
};

__device__ void load4(const void* base, int64_t at, float (&x)[4]) {
  const uint2 two = *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(base) + at);
  x[0] = low_bf16(two.x), x[1] = high_bf16(two.x), x[2] = low_bf16(two.y), x[3] = high_bf16(two.y);
}

// One warp, one token: lane l holds channels 4 l .. 4 l + 3.
__device__ void prepare(const K3KdaPrefill& a, int64_t token, int head, int row, float rate, Tile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t column = head * kDim + 4 * lane;
  float q[4], k[4], z[4], q2 = 0, k2 = 0;
  load4(a.q, token * a.q_stride + column, q);
  load4(a.k, token * a.k_stride + column, k);
  load4(a.z, token * a.z_stride + column, z);
  for (int i = 0; i < 4; ++i) q2 += q[i] * q[i], k2 += k[i] * k[i];
  const float q_scale = rsqrtf(warp_sum(q2) + 1e-6F) * kScale, k_scale = rsqrtf(warp_sum(k2) + 1e-6F);
  float match = 0;
  for (int i = 0; i < 4; ++i) {
    const float x = rate * (z[i] + a.dt_bias[column + i]);
    const float softplus = fmaxf(z[i] + a.dt_bias[column + i], 0.0F) + log1pf(expf(-fabsf(z[i] + a.dt_bias[column + i])));
    const float log_decay = a.bounded != 0 ? a.lower_bound / (1.0F + expf(-x)) : -rate * softplus;
    tile.decay[row][4 * lane + i] = expf(log_decay);
    tile.key[row][4 * lane + i] = k[i] * k_scale;
    tile.query[row][4 * lane + i] = q[i] * q_scale;
    match += (k[i] * k_scale) * (q[i] * q_scale);
  }
  match = warp_sum(match);
  if (lane == 0) {
    const int64_t at = token * a.b_stride + head;
    const float b =
        a.b_f32 != 0 ? static_cast<const float*>(a.b)[at] : __bfloat162float(static_cast<const __nv_bfloat16*>(a.b)[at]);
    tile.beta[row] = 1.0F / (1.0F + expf(-b));
    tile.match[row] = match;
  }
}

__global__ void __launch_bounds__(kThreads) recurrent(const __grid_constant__ K3KdaPrefill a) {
  extern __shared__ float4 shared[];
  Tile& tile = *reinterpret_cast<Tile*>(shared);
  const int parts = kDim / kRows;
  const int part = static_cast<int>(blockIdx.x) % parts,
            head = static_cast<int>(blockIdx.x) / parts % static_cast<int>(a.heads);
  const int sequence = static_cast<int>(blockIdx.x) / parts / static_cast<int>(a.heads);
  const int begin = a.offsets[sequence], length = a.offsets[sequence + 1] - begin;
  if (length <= 0) return;
  kda_load_cuts(a, sequence, 0, length, tile.cuts, kThreads);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, row = thread / 4, quarter = thread % 4;
  const float rate = expf(a.a_log[head]);

  float state[32];  // keys 4 * quarter + 16 * i + (0..3)
  const auto element = [&](int slot, int i) {
    return slot * a.slot_stride + (static_cast<int64_t>(head) * kDim + part * kRows + row) * kDim + 4 * quarter + 16 * i;
  };
  const auto store = [&](int slot) {
    if (slot < 0) return;
    for (int i = 0; i < 8; ++i) {
      if (a.state_bf16 != 0) {
        const uint2 two = {pack_bf16(state[4 * i], state[4 * i + 1]), pack_bf16(state[4 * i + 2], state[4 * i + 3])};
        *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.states) + element(slot, i)) = two;
      } else {
        *reinterpret_cast<float4*>(static_cast<float*>(a.states) + element(slot, i)) = {state[4 * i], state[4 * i + 1],
                                                                                        state[4 * i + 2], state[4 * i + 3]};
      }
    }
  };
  const int from = a.from[sequence];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float x[4] = {0, 0, 0, 0};
    if (from >= 0 && a.state_bf16 != 0) load4(a.states, element(from, i), x);
    if (from >= 0 && a.state_bf16 == 0) {
      const float4 f = *reinterpret_cast<const float4*>(static_cast<const float*>(a.states) + element(from, i));
      x[0] = f.x, x[1] = f.y, x[2] = f.z, x[3] = f.w;
    }
    for (int c = 0; c < 4; ++c) state[4 * i + c] = x[c];
  }

  int cut = 0;
  for (int first = 0; first < length; first += kTile) {
    const int count = min(kTile, length - first);
    for (int r = warp; r < count; r += kThreads / 32) {
      const int64_t token = static_cast<int64_t>(begin) + first + r;
      prepare(a, token, head, r, rate, tile);
      const int lane = thread % 32;
      tile.value[r][lane] =
          __bfloat162float(static_cast<const __nv_bfloat16*>(a.v)[token * a.v_stride + head * kDim + part * kRows + lane]);
    }
    __syncthreads();
    for (int r = 0; r < count; ++r) {
      float read = 0, asked = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at = 4 * quarter + 16 * i;
        const float4 d = *reinterpret_cast<const float4*>(&tile.decay[r][at]),
                     k = *reinterpret_cast<const float4*>(&tile.key[r][at]);
        const float4 q = *reinterpret_cast<const float4*>(&tile.query[r][at]);
        state[4 * i] *= d.x, state[4 * i + 1] *= d.y, state[4 * i + 2] *= d.z, state[4 * i + 3] *= d.w;
        read += state[4 * i] * k.x + state[4 * i + 1] * k.y + state[4 * i + 2] * k.z + state[4 * i + 3] * k.w;
        asked += state[4 * i] * q.x + state[4 * i + 1] * q.y + state[4 * i + 2] * q.z + state[4 * i + 3] * q.w;
      }
      read += __shfl_xor_sync(0xFFFFFFFFU, read, 1), asked += __shfl_xor_sync(0xFFFFFFFFU, asked, 1);
      read += __shfl_xor_sync(0xFFFFFFFFU, read, 2), asked += __shfl_xor_sync(0xFFFFFFFFU, asked, 2);
      const float u = tile.beta[r] * (tile.value[r][row] - read);
      if (quarter == 0) tile.out[r][row] = asked + u * tile.match[r];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 k = *reinterpret_cast<const float4*>(&tile.key[r][4 * quarter + 16 * i]);
        state[4 * i] += u * k.x, state[4 * i + 1] += u * k.y, state[4 * i + 2] += u * k.z, state[4 * i + 3] += u * k.w;
      }
      for (; cut < tile.cuts.count && tile.cuts.tokens[cut] == first + r + 1; ++cut) store(tile.cuts.slots[cut]);
    }
    __syncthreads();
    for (int r = warp; r < count; r += kThreads / 32) {
      const int64_t token = static_cast<int64_t>(begin) + first + r;
      static_cast<__nv_bfloat16*>(a.out)[token * a.out_stride + head * kDim + part * kRows + thread % 32] =
          __float2bfloat16(tile.out[r][thread % 32]);
    }
  }
  store(a.to[sequence]);
}

}  // namespace

int kda_prefill_recurrent_launch(const K3KdaPrefill& a, CUstream_st* stream) {
  LaunchOptions o;
  o.grid = dim3(static_cast<unsigned>(a.sequences * a.heads * (kDim / kRows)));
  o.block = dim3(kThreads);
  o.shared_bytes = static_cast<int>(sizeof(Tile));
  return launch(recurrent, o, stream, a);
}

}  // namespace k3::ops::cuda
