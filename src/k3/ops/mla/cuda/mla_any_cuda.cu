// Attention for GPUs before Hopper, to be right rather than fast: a warp a query row, one key at a time, FP32.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/mla/cuda/mla_launch.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kWarps = 4;

__device__ float2 two_of(const void* row, int pair) {
  const uint32_t word = static_cast<const uint32_t*>(row)[pair];
  return {low_bf16(word), high_bf16(word)};
}

struct Softmax {
  float most = -INFINITY, sum = 0;
  // The weight of a score and the factor of all before it.
  __device__ float2 take(float score) {
    const float next = fmaxf(most, score), factor = exp2f(most - next), weight = exp2f(score - next);
    most = next;
    sum = sum * factor + weight;
    return {weight, factor};
  }
  __device__ float inverse() const { return sum > 0 ? 1 / sum : 0; }
  __device__ float lse() const { return sum > 0 ? (most + log2f(sum)) * kLn2 : -INFINITY; }
};

__global__ void __launch_bounds__(32 * kWarps) decode(const MlaDecode p) {
  const int heads = static_cast<int>(p.heads), request = static_cast<int>(blockIdx.y),
            lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int first = p.offsets != nullptr ? p.offsets[request] : request * static_cast<int>(p.max_query_tokens);
  const int tokens = p.offsets != nullptr ? p.offsets[request + 1] - first : static_cast<int>(p.max_query_tokens);
  if (row >= tokens * heads) return;
  const int64_t out_row = static_cast<int64_t>(first) * heads + row;
  const int visible = p.lengths[request] - tokens + row / heads + 1, page_tokens = static_cast<int>(p.pages.page_tokens);
  const auto* q = static_cast<const __nv_bfloat16*>(p.query) + out_row * kLatentRow;
  float2 query[9], acc[8] = {};
#pragma unroll
  for (int i = 0; i < 9; ++i) query[i] = two_of(q, 32 * i + lane);
  Softmax softmax;
  for (int token = 0; token < visible; ++token) {
    const int page = p.pages.table[request * p.pages.table_stride + token / page_tokens];
    const auto* latent = static_cast<const __nv_bfloat16*>(p.pages.base) + page * p.pages.page_stride +
                         token % page_tokens * p.pages.row_stride;
    float2 x[9];
    float score = 0;
#pragma unroll
    for (int i = 0; i < 9; ++i) {
      x[i] = two_of(latent, 32 * i + lane);
      score += query[i].x * x[i].x + query[i].y * x[i].y;
    }
    const float2 w = softmax.take(warp_sum(score) * (kMlaScale * kLog2e));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      acc[i].x = acc[i].x * w.y + w.x * x[i].x;
      acc[i].y = acc[i].y * w.y + w.x * x[i].y;
    }
  }
  const float inverse = softmax.inverse();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 out = {acc[i].x * inverse, acc[i].y * inverse};
    if (p.ol_f32) {
      reinterpret_cast<float2*>(static_cast<float*>(p.ol) + out_row * kLatent)[32 * i + lane] = out;
    } else {
      reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.ol) + out_row * kLatent)[32 * i + lane] =
          pack_bf16(out.x, out.y);
    }
  }
  if (lane == 0 && p.lse != nullptr) p.lse[out_row] = softmax.lse();
}

// One query row (token, head) a warp.
__global__ void __launch_bounds__(32 * kWarps) prefill(const MlaPrefill p) {
  const int lane = static_cast<int>(threadIdx.x) % 32, head = static_cast<int>(blockIdx.y),
            heads = static_cast<int>(p.heads);
  const int token = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (token >= p.query_offsets[p.batch]) return;
  int request = 0;
  while (p.query_offsets[request + 1] <= token) ++request;
  const int keys = p.key_offsets[request + 1] - p.key_offsets[request];
  const int visible =
      keys - (p.query_offsets[request + 1] - p.query_offsets[request]) + token - p.query_offsets[request] + 1;
  const auto* q = static_cast<const __nv_bfloat16*>(p.q) + token * p.q_stride + head * kMlaKey;
  float2 query[3], acc[2] = {};
#pragma unroll
  for (int i = 0; i < 3; ++i) query[i] = two_of(q, 32 * i + lane);
  Softmax softmax;
  // Keys of the request that are here: all of them, or those of this part, which goes on with what the parts before left.
  const int64_t row = static_cast<int64_t>(token) * heads + head, key0 = p.key_offsets[request];
  const int begin = p.so_far == nullptr ? 0 : static_cast<int>(max(p.first_key - key0, int64_t{0}));
  const int end = p.so_far == nullptr ? keys : static_cast<int>(min(p.first_key + p.keys - key0, static_cast<int64_t>(keys)));
  if (begin >= end) return;
  float2* const so_far = p.so_far == nullptr ? nullptr : reinterpret_cast<float2*>(p.so_far + row * kMlaValue);
  if (begin > 0) {
    softmax = {p.lse[row] * kLog2e, 1};
#pragma unroll
    for (int i = 0; i < 2; ++i) acc[i] = so_far[32 * i + lane];
    __syncwarp();
  }
  for (int j = begin; j < min(visible, end); ++j) {
    const int64_t key = key0 - p.first_key + j;
    const auto* kv = static_cast<const __nv_bfloat16*>(p.expanded) + key * p.expanded_stride + head * (kMlaNope + kMlaValue);
    const auto* shared = static_cast<const __nv_bfloat16*>(p.shared_keys) + key * p.shared_stride;
    const float2 k[3] = {two_of(kv, lane), two_of(kv, 32 + lane), two_of(shared, lane)};
    float score = 0;
#pragma unroll
    for (int i = 0; i < 3; ++i) score += query[i].x * k[i].x + query[i].y * k[i].y;
    const float2 w = softmax.take(warp_sum(score) * (kMlaScale * kLog2e));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 v = two_of(kv, 64 + 32 * i + lane);
      acc[i].x = acc[i].x * w.y + w.x * v.x;
      acc[i].y = acc[i].y * w.y + w.x * v.y;
    }
  }
  const float inverse = softmax.inverse();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float2 out = {acc[i].x * inverse, acc[i].y * inverse};
    if (end < keys) {
      so_far[32 * i + lane] = out;
      continue;
    }
    if (p.gate != nullptr) {
      const float2 g =
          two_of(static_cast<const __nv_bfloat16*>(p.gate) + token * p.gate_stride + head * kMlaValue, 32 * i + lane);
      out.x /= 1 + exp2f(-g.x * kLog2e);
      out.y /= 1 + exp2f(-g.y * kLog2e);
    }
    reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + token * p.out_stride +
                                head * kMlaValue)[32 * i + lane] = pack_bf16(out.x, out.y);
  }
  if (lane == 0 && p.lse != nullptr) p.lse[row] = softmax.lse();
}

}  // namespace

int mla_decode_any_launch(const MlaDecode& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.max_query_tokens * p.heads + kWarps - 1) / kWarps);
  decode<<<dim3(blocks, static_cast<unsigned>(p.batch)), 32 * kWarps, 0, stream>>>(p);
  return launch_code();
}

int mla_prefill_any_launch(const MlaPrefill& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps);
  prefill<<<dim3(blocks, static_cast<unsigned>(p.heads)), 32 * kWarps, 0, stream>>>(p);
  return launch_code();
}

}  // namespace k3::ops::cuda
