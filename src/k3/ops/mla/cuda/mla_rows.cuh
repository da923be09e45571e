// Internal to ops/mla. Rows of the paged latent cache, a warp a row.
#pragma once

#include <cuda_bf16.h>

#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/mla/cuda/mla_args.h"
#include "k3/ops/mla/cuda/mla_launch.cuh"

namespace k3::ops::cuda {

__device__ __forceinline__ __nv_bfloat16* page_row(const LatentPages& pages, int request, int position) {
  const int page_tokens = static_cast<int>(pages.page_tokens);
  const int page = pages.table[request * pages.table_stride + position / page_tokens];
  return static_cast<__nv_bfloat16*>(pages.base) + page * pages.page_stride + position % page_tokens * pages.row_stride;
}

// Eight neighbours of the norm's weight.
__device__ __forceinline__ void norm_weights(const LatentAppend& p, int at, float (&weight)[8]) {
  if (p.norm_f32) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 four = static_cast<const float4*>(p.norm_weight)[2 * at + half];
      weight[4 * half] = four.x, weight[4 * half + 1] = four.y, weight[4 * half + 2] = four.z, weight[4 * half + 3] = four.w;
    }
    return;
  }
  unpack8(static_cast<const uint4*>(p.norm_weight)[at], weight);
}

// A row of the cache over the lanes of a warp: latents 8 lane.. and 256 + 8 lane.., numbers 2 lane.. of the shared key.
struct LatentRow {
  uint4 latents[2];
  uint32_t key;
};

// Row `row` of kv, its latent normalised.
__device__ __forceinline__ LatentRow normalised_row(const LatentAppend& p, int row, int lane) {
  const auto* kv = static_cast<const __nv_bfloat16*>(p.kv) + row * p.kv_stride;
  LatentRow out = {{reinterpret_cast<const uint4*>(kv)[lane], reinterpret_cast<const uint4*>(kv)[32 + lane]},
                   reinterpret_cast<const uint32_t*>(kv + kLatent)[lane]};
  float x[2][8], sum = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    unpack8(out.latents[i], x[i]);
#pragma unroll
    for (const float v : x[i]) sum += v * v;
  }
  const float factor = 1 / sqrtf(warp_sum(sum) / kLatent + p.eps);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float weight[8];
    norm_weights(p, 32 * i + lane, weight);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[i][j] = x[i][j] * factor * weight[j];
    out.latents[i] = pack8(x[i]);
  }
  return out;
}

__device__ __forceinline__ void store_row(__nv_bfloat16* to, const LatentRow& row, int lane) {
  reinterpret_cast<uint4*>(to)[lane] = row.latents[0];
  reinterpret_cast<uint4*>(to)[32 + lane] = row.latents[1];
  reinterpret_cast<uint32_t*>(to + kLatent)[lane] = row.key;
}

}  // namespace k3::ops::cuda
