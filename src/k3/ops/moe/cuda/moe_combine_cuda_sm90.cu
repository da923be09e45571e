// The weighted sum over a token's slots, with an RMSNorm of the rounded sum. A cluster of blocks has a token; each block some columns.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 256, kTopk = 16, kHeld = 8;  // kHeld groups of 4 columns a thread: 8192 columns in one block

__global__ void __launch_bounds__(kThreads) combine(const __grid_constant__ MoeCombineCuda p, int parts) {
  __shared__ float sums[kThreads / 32];
  __shared__ float part_sum;
  const int token = static_cast<int>(blockIdx.x) / parts, part = static_cast<int>(blockIdx.x) % parts, tid = static_cast<int>(threadIdx.x);
  pdl_wait();
  pdl_release();
  const int tokens = p.token_count == nullptr ? p.tokens : min(p.tokens, *p.token_count);
  if (token >= tokens) return;  // the whole cluster
  float weights[kTopk];
  bool local[kTopk];
#pragma unroll
  for (int j = 0; j < kTopk; ++j) {
    const bool is = j < p.topk;
    const int e = is ? p.ids[token * p.topk + j] - p.first_expert : -1;
    local[j] = e >= 0 && e < p.experts;
    weights[j] = is ? p.weights[token * p.topk + j] : 0;
  }
  const int fours = p.width / 4;
  const float4* rows = reinterpret_cast<const float4*>(p.slot_out) + static_cast<int64_t>(token) * p.topk * fours;
  float4 held[kHeld];
  float squares = 0;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = (h * parts + part) * kThreads + tid;
    if (i >= fours) break;
    float4 v[kTopk];
#pragma unroll
    for (int j = 0; j < kTopk; ++j) {
      if (local[j]) v[j] = rows[static_cast<int64_t>(j) * fours + i];
    }
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kTopk; ++j) {
      if (!local[j]) continue;
      sum.x += weights[j] * v[j].x, sum.y += weights[j] * v[j].y, sum.z += weights[j] * v[j].z, sum.w += weights[j] * v[j].w;
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
  if (tid % 32 == 0) sums[tid / 32] = squares;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) total += sums[w];
  if (parts > 1) {
    if (tid == 0) part_sum = total;
    cluster_sync();
    total = 0;
    for (int r = 0; r < parts; ++r) total += cluster_load(cluster_map(shared_address(&part_sum), static_cast<uint32_t>(r)));
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

}  // namespace

int moe_combine_launch(const MoeCombineCuda& p, CUstream_st* stream) {
  const int parts = p.tokens <= 32 ? 4 : p.tokens <= 64 ? 2 : 1;
  LaunchOptions o{.grid = dim3(static_cast<unsigned>(p.tokens * parts)), .block = dim3(kThreads), .cluster = parts, .dependent = true};
  return launch(combine, o, stream, p, parts);
}

}  // namespace k3::ops::cuda
