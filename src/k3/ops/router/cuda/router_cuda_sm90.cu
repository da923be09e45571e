// A warp has a token; lane l holds experts l, l + 32, ... as keys whose unsigned order is that of the biased scores.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/router/cuda/router_cuda.cuh"

namespace k3::ops::cuda {
namespace {

__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

// Monotonic; larger than 0 for every number but NaN, which ranks with minus infinity's neighbour 1.
__device__ __forceinline__ uint32_t key_of(float score) {
  if (isnan(score)) return 1;
  const uint32_t bits = __float_as_uint(score == 0 ? 0.0F : score);  // -0 and 0 are equal
  return bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}

// kHeld: experts a lane.
template <int kHeld>
__global__ void __launch_bounds__(128) route(const __grid_constant__ RouterCuda p) {
  constexpr unsigned kAll = 0xFFFFFFFFU;
  const int token = static_cast<int>(blockIdx.x) * static_cast<int>(blockDim.x / 32) + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float bias[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int e = i * 32 + lane;
    bias[i] = p.bias != nullptr && e < p.experts ? p.bias[e] : 0;
  }
  pdl_wait();
  pdl_release();
  if (token >= p.tokens) return;
  const float* logits = p.logits + static_cast<int64_t>(token) * p.experts;
  uint32_t keys[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int e = i * 32 + lane;
    keys[i] = e < p.experts ? key_of(sigmoid(logits[e]) + bias[i]) : 0;
  }
  uint32_t best = 0;
  int best_i = 0;
  const auto rescan = [&] {
    best = keys[0];
    best_i = 0;
#pragma unroll
    for (int i = 1; i < kHeld; ++i) {
      if (keys[i] > best) best = keys[i], best_i = i;
    }
  };
  rescan();
  int mine = 0;  // lane j keeps the j-th choice
  for (int j = 0; j < p.topk; ++j) {
    const uint32_t top = __reduce_max_sync(kAll, best);
    const unsigned e = __reduce_min_sync(kAll, best == top ? static_cast<unsigned>(best_i * 32 + lane) : kAll);
    if (lane == j) mine = static_cast<int>(e);
    if (static_cast<int>(e % 32) == lane) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (i == static_cast<int>(e / 32)) keys[i] = 0;
      }
      rescan();
    }
  }
  const float score = lane < p.topk ? sigmoid(logits[mine]) : 0;
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 16; ++j) sum += __shfl_sync(kAll, score, j);  // in the order of choice
  const float factor = p.renormalise ? p.scale / (sum + 1e-20F) : p.scale;
  if (lane < p.topk) {
    const int64_t at = static_cast<int64_t>(token) * p.topk + lane;
    const int local = mine - p.local_first;
    p.ids[at] = p.local_count > 0 && (local < 0 || local >= p.local_count) ? -1 : mine;
    p.weights[at] = score * factor;
  }
}

}  // namespace

int router_launch(const RouterCuda& a, CUstream_st* stream) {
  const int warps = a.tokens <= 132 ? 1 : 4;  // few tokens: a multiprocessor each
  LaunchOptions o{.grid = dim3(static_cast<unsigned>((a.tokens + warps - 1) / warps)), .block = dim3(static_cast<unsigned>(32 * warps)), .dependent = true};
  if (a.experts <= 256) return launch(route<8>, o, stream, a);
  if (a.experts <= 896) return launch(route<28>, o, stream, a);
  return launch(route<32>, o, stream, a);
}

}  // namespace k3::ops::cuda
