// MLA of any sizes: a block a (token, head); thread i scores cached token i of a tile of 128, then sums up every 128th column of the
// latents.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/mla/cuda/mla_any_dims_args.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr float kToBase2 = 1.44269504F;

__device__ __forceinline__ float load(const void* p, int64_t i) { return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]); }

__device__ int request_of(const int32_t* offsets, int64_t batch, int64_t row) {
  if (row >= offsets[batch]) return -1;
  int request = 0;
  while (offsets[request + 1] <= row) ++request;
  return request;
}

__device__ int64_t row_at(const LatentPages& pages, int request, int position) {
  const auto page_tokens = static_cast<int>(pages.page_tokens);
  return pages.table[request * pages.table_stride + position / page_tokens] * pages.page_stride + position % page_tokens * pages.row_stride;
}

// Of all threads, in a fixed order; every thread gets it.
template <bool kMax>
__device__ float over_block(float x, float* scratch) {
  x = kMax ? warp_max(x) : warp_sum(x);
  __syncthreads();  // the value before was read
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float all = scratch[0];
  for (int w = 1; w < kWarps; ++w) all = kMax ? fmaxf(all, scratch[w]) : all + scratch[w];
  return all;
}

__global__ void __launch_bounds__(kThreads) append_any(const LatentAppendAny a) {
  __shared__ float scratch[kWarps];
  const LatentAppend& p = a.append;
  const auto token = static_cast<int64_t>(blockIdx.x);
  const int request = request_of(p.offsets, p.batch, token);
  if (request < 0) return;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < a.rank; i += kThreads) {
    const float x = load(p.kv, token * p.kv_stride + i);
    squares = fmaf(x, x, squares);
  }
  const float factor = 1 / sqrtf(over_block<false>(squares, scratch) / static_cast<float>(a.rank) + p.eps);
  auto* row = static_cast<__nv_bfloat16*>(p.pages.base) +
              row_at(p.pages, request, p.history[request] + static_cast<int>(token) - p.offsets[request]);
  for (int i = static_cast<int>(threadIdx.x); i < a.rank + a.rope; i += kThreads) {
    float x = load(p.kv, token * p.kv_stride + i);
    if (i < a.rank) x *= factor * (p.norm_f32 ? static_cast<const float*>(p.norm_weight)[i] : load(p.norm_weight, i));
    row[i] = __float2bfloat16(x);
  }
}

__global__ void __launch_bounds__(kThreads) mla_any(const MlaAny a) {
  extern __shared__ float shared[];
  __shared__ float scratch[kWarps], weights[kThreads];
  __shared__ int64_t rows[kThreads];
  const MlaDims& d = a.dims;
  const int head = static_cast<int>(blockIdx.x) % d.heads, thread = static_cast<int>(threadIdx.x);
  const int64_t token = static_cast<int>(blockIdx.x) / d.heads;
  const int request = request_of(a.offsets, a.batch, token);
  if (request < 0) return;
  float* query = shared;                 // [rank + rope]: the head's query as a row of the cache
  float* sums = shared + d.rank + d.rope;  // [rank]
  const int64_t q = token * a.q_stride + static_cast<int64_t>(head) * (d.nope + d.rope);
  const int64_t keys = static_cast<int64_t>(head) * (d.nope + d.value) * d.rank, values = keys + static_cast<int64_t>(d.nope) * d.rank;
  for (int r = thread; r < d.rank + d.rope; r += kThreads) {
    float x = 0;
    if (r >= d.rank) {
      x = load(a.q, q + d.nope + r - d.rank);
    } else {
      for (int i = 0; i < d.nope; ++i) x = fmaf(load(a.q, q + i), load(a.kv_b, keys + static_cast<int64_t>(i) * d.rank + r), x);
      sums[r] = 0;
    }
    query[r] = x;
  }
  __syncthreads();
  const int visible = a.lengths[request] - (a.offsets[request + 1] - static_cast<int>(token)) + 1;
  const float scale = rsqrtf(static_cast<float>(d.nope + d.rope)) * kToBase2;
  float most = -INFINITY, total = 0;
  for (int tile = 0; tile < visible; tile += kThreads) {
    const int count = min(kThreads, visible - tile);
    float score = -INFINITY;
    if (thread < count) {
      const int64_t row = row_at(a.pages, request, tile + thread);
      rows[thread] = row;
      score = 0;
      for (int r = 0; r < d.rank + d.rope; ++r) score = fmaf(query[r], load(a.pages.base, row + r), score);
      score *= scale;
    }
    const float next = fmaxf(most, over_block<true>(score, scratch)), factor = exp2f(most - next);
    const float weight = thread < count ? exp2f(score - next) : 0;
    weights[thread] = weight;
    total = total * factor + over_block<false>(weight, scratch);  // its barriers also show weights and rows to all
    most = next;
    for (int r = thread; r < d.rank; r += kThreads) {
      float sum = sums[r] * factor;
      for (int i = 0; i < count; ++i) sum = fmaf(weights[i], load(a.pages.base, rows[i] + r), sum);
      sums[r] = sum;
    }
    __syncthreads();  // before weights and rows change
  }
  for (int v = thread; v < d.value; v += kThreads) {
    float x = 0;
    for (int r = 0; r < d.rank; ++r) x = fmaf(sums[r], load(a.kv_b, values + static_cast<int64_t>(v) * d.rank + r), x);
    static_cast<__nv_bfloat16*>(a.out)[token * a.out_stride + static_cast<int64_t>(head) * d.value + v] = __float2bfloat16(x / total);
  }
}

}  // namespace

int latent_append_any_launch(const LatentAppendAny& args, CUstream_st* stream) {
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(args.append.tokens)), .block = dim3(kThreads)};
  return launch(append_any, options, stream, args);
}

int mla_any_dims_launch(const MlaAny& args, CUstream_st* stream) {
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(args.tokens * args.dims.heads)),
                              .block = dim3(kThreads),
                              .shared_bytes = (2 * args.dims.rank + args.dims.rope) * 4};
  return launch(mla_any, options, stream, args);
}

}  // namespace k3::ops::cuda
