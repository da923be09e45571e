// A warp has a token; lane l holds experts l, l + 32, ... as keys whose unsigned order is that of the biased scores. The
// topk-th largest of the 32 lanes' best keys bounds the topk-th largest of all from below; the few keys that reach it (23 of
// 896 on random scores) are collected and each counts those before it. Where many are equal, the best is taken again and
// again.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/router/cuda/router_cuda.cuh"

namespace k3::ops::cuda {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFU;
constexpr int kTopk = 16, kCandidates = 96;

__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
// Within 3e-7: enough to choose by.
__device__ __forceinline__ float fast_sigmoid(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

// Monotonic and larger than 1 for every number; NaN ranks last, with 1; 0 is nothing.
__device__ __forceinline__ uint32_t key_of(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0F);  // -0 and 0 are equal
  return isnan(score) ? 1 : bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}

template <int kHeld>  // experts a lane
__device__ __forceinline__ uint32_t largest(const uint32_t (&keys)[kHeld]) {
  uint32_t best[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) best[i & 3] = max(best[i & 3], keys[i]);
  return max(max(best[0], best[1]), max(best[2], best[3]));
}

// Lane j gets the j-th choice: the general way.
template <int kHeld>
__device__ __forceinline__ int choose_one_by_one(uint32_t (&keys)[kHeld], int lane, int topk) {
  int mine = 0;
  for (int j = 0; j < topk; ++j) {
    const uint32_t top = __reduce_max_sync(kAll, largest(keys));
    unsigned first = kAll;
#pragma unroll
    for (int i = kHeld - 1; i >= 0; --i) {
      if (keys[i] == top) first = static_cast<unsigned>(i * 32 + lane);
    }
    const unsigned e = __reduce_min_sync(kAll, first);
    if (lane == j) mine = static_cast<int>(e);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (static_cast<unsigned>(i * 32 + lane) == e) keys[i] = 0;
    }
  }
  return mine;
}

template <int kHeld, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) route(const __grid_constant__ RouterCuda p) {
  __shared__ uint2 candidates[kWarps][kCandidates];  // key, expert
  __shared__ int chosen[kWarps][kTopk];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            token = static_cast<int>(blockIdx.x) * kWarps + warp;
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
  float x[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) x[i] = i * 32 + lane < p.experts ? logits[i * 32 + lane] : 0;
  uint32_t keys[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) keys[i] = i * 32 + lane < p.experts ? key_of(fast_sigmoid(x[i]) + bias[i]) : 0;

  const uint32_t best = largest(keys);
  int rank = 0;
#pragma unroll
  for (int l = 0; l < 32; ++l) {
    const uint32_t other = __shfl_sync(kAll, best, l);
    rank += other > best || (other == best && l < lane) ? 1 : 0;
  }
  const uint32_t bound =
      max(1U, __shfl_sync(kAll, best, __ffs(static_cast<int>(__ballot_sync(kAll, rank == p.topk - 1))) - 1));
  int count = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {  // in the order of experts
    const bool is = keys[i] >= bound;
    const unsigned vote = __ballot_sync(kAll, is);
    const int at = count + __popc(vote & ((1U << lane) - 1));
    if (is && at < kCandidates) candidates[warp][at] = {keys[i], static_cast<unsigned>(i * 32 + lane)};
    count += __popc(vote);
  }
  __syncwarp();
  int mine = 0;
  if (count <= kCandidates) {
    for (int c = lane; c < count; c += 32) {
      const uint2 me = candidates[warp][c];
      int before = 0;
      for (int j = 0; j < count; ++j) {
        const uint32_t other = candidates[warp][j].x;
        before += other > me.x || (other == me.x && j < c) ? 1 : 0;
      }
      if (before < p.topk) chosen[warp][before] = static_cast<int>(me.y);
    }
    __syncwarp();
    if (lane < p.topk) mine = chosen[warp][lane];
  } else {
    mine = choose_one_by_one(keys, lane, p.topk);
  }

  const float score = lane < p.topk ? sigmoid(logits[mine]) : 0;
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kTopk; ++j) sum += __shfl_sync(kAll, score, j);  // in the order of choice
  const float factor = p.renormalise ? p.scale / (sum + 1e-20F) : p.scale;
  if (lane < p.topk) {
    const int64_t at = static_cast<int64_t>(token) * p.topk + lane;
    const int local = mine - p.local_first;
    p.ids[at] = p.local_count > 0 && (local < 0 || local >= p.local_count) ? -1 : mine;
    p.weights[at] = score * factor;
  }
}

template <int kHeld>
int launch_held(const RouterCuda& a, cudaStream_t stream) {
  // Few tokens: a multiprocessor each.
  const int warps = a.tokens <= 132 ? 1 : 4;
  LaunchOptions o{.grid = dim3(static_cast<unsigned>((a.tokens + warps - 1) / warps)),
                  .block = dim3(static_cast<unsigned>(32 * warps)),
                  .dependent = true};
  return warps == 1 ? launch(route<kHeld, 1>, o, stream, a) : launch(route<kHeld, 4>, o, stream, a);
}

}  // namespace

int router_launch(const RouterCuda& a, CUstream_st* stream) {
  if (a.experts <= 256) return launch_held<8>(a, stream);
  if (a.experts <= 896) return launch_held<28>(a, stream);
  return launch_held<32>(a, stream);
}

}  // namespace k3::ops::cuda
