// Rows in and out of the latent cache; a warp a row.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/mla/cuda/mla_launch.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kWarps = 4;

// The request of a packed row; -1 behind the last.
__device__ int request_of(const int32_t* offsets, int batch, int row) {
  if (row >= offsets[batch]) return -1;
  int low = 0, high = batch;  // offsets[low] <= row < offsets[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (offsets[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

__device__ __nv_bfloat16* page_row(const LatentPages& pages, int request, int position) {
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
  const uint4 eight = static_cast<const uint4*>(p.norm_weight)[at];
  const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) weight[2 * j] = low_bf16(words[j]), weight[2 * j + 1] = high_bf16(words[j]);
}

__global__ void __launch_bounds__(32 * kWarps) append(const LatentAppend p) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32;
  dependent_begin();
  if (row >= p.tokens) return;
  const int request = request_of(p.offsets, static_cast<int>(p.batch), row);
  if (request < 0) return;
  const auto* kv = static_cast<const __nv_bfloat16*>(p.kv) + row * p.kv_stride;
  __nv_bfloat16* out = page_row(p.pages, request, p.history[request] + row - p.offsets[request]);
  const uint4 two[2] = {reinterpret_cast<const uint4*>(kv)[lane], reinterpret_cast<const uint4*>(kv)[32 + lane]};
  const uint32_t rest = reinterpret_cast<const uint32_t*>(kv + kLatent)[lane];
  float sum = 0;
  float x[16];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t words[4] = {two[i].x, two[i].y, two[i].z, two[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[8 * i + 2 * j] = low_bf16(words[j]);
      x[8 * i + 2 * j + 1] = high_bf16(words[j]);
    }
  }
#pragma unroll
  for (const float v : x) sum += v * v;
  const float factor = 1 / sqrtf(warp_sum(sum) / kLatent + p.eps);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float weight[8];
    norm_weights(p, 32 * i + lane, weight);
    uint32_t packed[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      packed[j] = pack_bf16(x[8 * i + 2 * j] * factor * weight[2 * j], x[8 * i + 2 * j + 1] * factor * weight[2 * j + 1]);
    }
    reinterpret_cast<uint4*>(out)[32 * i + lane] = {packed[0], packed[1], packed[2], packed[3]};
  }
  reinterpret_cast<uint32_t*>(out + kLatent)[lane] = rest;
}

__global__ void __launch_bounds__(32 * kWarps) gather(const LatentGather p) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32;
  dependent_begin();
  if (row >= p.tokens) return;
  const int at = static_cast<int>(p.first) + row, request = request_of(p.offsets, static_cast<int>(p.batch), at);
  if (request < 0) return;
  const uint4* from = reinterpret_cast<const uint4*>(page_row(p.pages, request, at - p.offsets[request]));
  uint4* to = reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + row * p.out_stride);
  const uint4 first = from[lane], second = from[32 + lane];
  if (lane < 8) to[64 + lane] = from[64 + lane];
  to[lane] = first;
  to[32 + lane] = second;
}

LaunchOptions options_of(int64_t rows) {
  return {.grid = dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)), .block = dim3(32 * kWarps), .dependent = true};
}

}  // namespace

int latent_append_launch(const LatentAppend& p, cudaStream_t stream) {
  return launch(append, options_of(p.tokens), stream, p);
}

int latent_gather_launch(const LatentGather& p, cudaStream_t stream) {
  return launch(gather, options_of(p.tokens), stream, p);
}

}  // namespace k3::ops::cuda
