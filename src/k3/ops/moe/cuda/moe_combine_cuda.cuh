// Internal to ops/moe: the weighted sum over a token's slots, and the RMSNorm of the rounded sum.
#pragma once

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

// Part `part` of a token's columns, by a block of kThreads; the parts are the blocks of a cluster. shared: kThreads / 32 + 1 floats.
// Up to 8192 columns.
template <int kThreads>
__device__ __forceinline__ void combine_token(const MoeCombineCuda& p, int token, int part, int parts, float* shared) {
  constexpr int kTopk = 16, kHeld = 8192 / 4 / kThreads;
  const int tid = static_cast<int>(threadIdx.x), fours = p.width / 4;
  const float4* rows = reinterpret_cast<const float4*>(p.slot_out) + static_cast<int64_t>(token) * p.topk * fours;
  unsigned local = 0;
  for (int j = 0; j < p.topk; ++j) {
    const int e = p.ids[token * p.topk + j] - p.first_expert;
    if (e >= 0 && e < p.experts) local |= 1U << j;
  }
  float4 held[kHeld];
  float squares = 0;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = (h * parts + part) * kThreads + tid;
    if (i >= fours) break;
    float4 v[kTopk];
#pragma unroll
    for (int j = 0; j < kTopk; ++j) {
      if (local >> j & 1) v[j] = __ldcg(rows + static_cast<int64_t>(j) * fours + i);
    }
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kTopk; ++j) {
      if (!(local >> j & 1)) continue;
      const float w = p.weights[token * p.topk + j];
      sum.x += w * v[j].x, sum.y += w * v[j].y, sum.z += w * v[j].z, sum.w += w * v[j].w;
    }
    if (p.out_f32 != nullptr) reinterpret_cast<float4*>(p.out_f32)[static_cast<int64_t>(token) * fours + i] = sum;
    const uint32_t low = pack_bf16(sum.x, sum.y), high = pack_bf16(sum.z, sum.w);
    if (p.norm_weight == nullptr) {
      if (p.out != nullptr) static_cast<uint2*>(p.out)[static_cast<int64_t>(token) * fours + i] = {low, high};
    } else {
      held[h] = {low_bf16(low), high_bf16(low), low_bf16(high), high_bf16(high)};
      squares += held[h].x * held[h].x + held[h].y * held[h].y + held[h].z * held[h].z + held[h].w * held[h].w;
    }
  }
  if (p.norm_weight == nullptr || p.out == nullptr) return;
  squares = warp_sum(squares);
  __syncthreads();  // `shared` may still be read for the token before
  if (tid % 32 == 0) shared[tid / 32] = squares;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) total += shared[w];
  if (parts > 1) {
    float* mine = shared + kThreads / 32;
    if (tid == 0) *mine = total;
    cluster_sync();
    total = 0;
    for (int r = 0; r < parts; ++r) total += cluster_load(cluster_map(shared_address(mine), static_cast<uint32_t>(r)));
    cluster_sync();  // nobody leaves while others read
  }
  const float scale = rsqrtf(total / static_cast<float>(p.width) + p.eps);
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = (h * parts + part) * kThreads + tid;
    if (i >= fours) break;
    const uint2 w = static_cast<const uint2*>(p.norm_weight)[i];
    const float4 v = held[h];
    static_cast<uint2*>(p.out)[static_cast<int64_t>(token) * fours + i] = {
        pack_bf16(low_bf16(w.x) * (v.x * scale), high_bf16(w.x) * (v.y * scale)), pack_bf16(low_bf16(w.y) * (v.z * scale), high_bf16(w.y) * (v.w * scale))};
  }
}

}  // namespace k3::ops::cuda
