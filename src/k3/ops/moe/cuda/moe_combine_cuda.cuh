// Internal to ops/moe. The weighted sum over a token's slots, and the RMSNorm of the rounded sum.
#pragma once

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

// Columns 4 four .. 4 four + 3 of a token, without a norm, by one thread; `more` is added before the rounding.
__device__ __forceinline__ void combine_four(const MoeCombineCuda& p, const int32_t* ids, const float* weights, int token, int four,
                                             const float4& more) {
  constexpr int kTopk = 16;
  const int64_t fours = p.width / 4, at = token * fours + four;
  const float4* rows = reinterpret_cast<const float4*>(p.slot_out) + token * p.topk * fours + four;
  float4 v[kTopk], sum = {0, 0, 0, 0};
  float w[kTopk];
#pragma unroll
  for (int j = 0; j < kTopk; ++j) {
    const int e = j < p.topk ? ids[token * p.topk + j] - p.first_expert : -1;
    const bool local = e >= 0 && e < p.experts;
    w[j] = local ? weights[token * p.topk + j] : 0;
    v[j] = local ? __ldcg(rows + j * fours) : float4{0, 0, 0, 0};
  }
#pragma unroll
  for (int j = 0; j < kTopk; ++j) sum.x += w[j] * v[j].x, sum.y += w[j] * v[j].y, sum.z += w[j] * v[j].z, sum.w += w[j] * v[j].w;
  if (p.out_f32 != nullptr) reinterpret_cast<float4*>(p.out_f32)[at] = sum;
  if (p.out == nullptr) return;
  sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  if (p.add != nullptr) {
    const uint2 two = static_cast<const uint2*>(p.add)[at];
    sum.x += low_bf16(two.x), sum.y += high_bf16(two.x), sum.z += low_bf16(two.y), sum.w += high_bf16(two.y);
  }
  static_cast<uint2*>(p.out)[at] = {pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w)};
}

// Part `part` of a token's columns, by a block of kThreads; with a norm the parts are the blocks of a cluster. wait(): until slot_out is
// there; what does not depend on it is read before. held: shared memory for the part's columns. The code is kept short: it
// runs once a launch, and fetching it is a good part of its time.
template <int kThreads, class Wait>
__device__ __forceinline__ void combine_token(const MoeCombineCuda& p, const int32_t* ids, const float* weights, int token, int part,
                                              int parts, float4* held, const Wait& wait) {
  constexpr int kTopk = 16;
  __shared__ float sums[kThreads / 32], part_sum;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, fours = p.width / 4;
  const int each = (fours + parts - 1) / parts, begin = part * each, end = min(fours, begin + each);
  const float4* rows = reinterpret_cast<const float4*>(p.slot_out) + static_cast<int64_t>(token) * p.topk * fours;
  int e = -1;
  float weight = 0;
  if (lane < p.topk) {
    e = ids[token * p.topk + lane] - p.first_expert;
    weight = weights[token * p.topk + lane];
  }
  const unsigned local = __ballot_sync(0xFFFFFFFFU, e >= 0 && e < p.experts);
  wait();
  float squares = 0;
#pragma unroll 1
  for (int i = begin + tid; i - lane < end; i += kThreads) {  // whole warps, for the shuffles
    const bool inside = i < end;
    float4 v[kTopk];
#pragma unroll
    for (int j = 0; j < kTopk; ++j) {
      v[j] = {0, 0, 0, 0};
      if (inside && (local >> j & 1)) v[j] = __ldcg(rows + static_cast<int64_t>(j) * fours + i);
    }
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kTopk; ++j) {
      const float w = local >> j & 1 ? __shfl_sync(0xFFFFFFFFU, weight, j) : 0;
      sum.x += w * v[j].x, sum.y += w * v[j].y, sum.z += w * v[j].z, sum.w += w * v[j].w;
    }
    if (!inside) break;
    if (p.out_f32 != nullptr) reinterpret_cast<float4*>(p.out_f32)[static_cast<int64_t>(token) * fours + i] = sum;
    if (p.add != nullptr) {
      const uint2 more = static_cast<const uint2*>(p.add)[static_cast<int64_t>(token) * fours + i];
      sum.x += low_bf16(more.x), sum.y += high_bf16(more.x), sum.z += low_bf16(more.y), sum.w += high_bf16(more.y);
    }
    const uint32_t low = pack_bf16(sum.x, sum.y), high = pack_bf16(sum.z, sum.w);
    if (p.norm_weight == nullptr) {
      if (p.out != nullptr) static_cast<uint2*>(p.out)[static_cast<int64_t>(token) * fours + i] = {low, high};
    } else {
      const float4 x = {low_bf16(low), high_bf16(low), low_bf16(high), high_bf16(high)};
      held[i - begin] = x;
      squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
  }
  if (p.norm_weight == nullptr || p.out == nullptr) return;
  squares = warp_sum(squares);
  __syncthreads();  // sums may still be read for the token before
  if (lane == 0) sums[tid / 32] = squares;
  __syncthreads();
  float total = warp_sum(lane < kThreads / 32 ? sums[lane] : 0);
  if (parts > 1) {
    if (tid == 0) part_sum = total;
    cluster_sync();
    total = 0;
    for (int r = 0; r < parts; ++r) total += cluster_load(cluster_map(shared_address(&part_sum), static_cast<uint32_t>(r)));
    cluster_sync();  // nobody leaves while others read
  }
  const float scale = rsqrtf(total / static_cast<float>(p.width) + p.eps);
#pragma unroll 1
  for (int i = begin + tid; i < end; i += kThreads) {
    float4 w;
    if (p.norm_f32) {
      w = static_cast<const float4*>(p.norm_weight)[i];
    } else {
      const uint2 two = static_cast<const uint2*>(p.norm_weight)[i];
      w = {low_bf16(two.x), high_bf16(two.x), low_bf16(two.y), high_bf16(two.y)};
    }
    const float4 v = held[i - begin];
    static_cast<uint2*>(p.out)[static_cast<int64_t>(token) * fours + i] = {
        pack_bf16(w.x * (v.x * scale), w.y * (v.y * scale)), pack_bf16(w.z * (v.z * scale), w.w * (v.w * scale))};
  }
}

}  // namespace k3::ops::cuda
