// Internal to ops/router. The choice of one token's experts by one warp, for the router's kernel and for kernels that route
// themselves.
//
// Lane l holds experts l, l + 32, ... as keys whose unsigned order is that of the biased scores. The topk-th largest of the 32
// lanes' best keys bounds the topk-th largest of all from below; the few keys that reach it (23 of 896 on random scores) are
// collected and each counts those before it. Where many are equal, the best is taken again and again.
#pragma once

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

inline constexpr int kRouterTopk = 16, kRouterCandidates = 96;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

__device__ __forceinline__ float route_sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
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
    const uint32_t top = __reduce_max_sync(kAllLanes, largest(keys));
    unsigned first = kAllLanes;
#pragma unroll
    for (int i = kHeld - 1; i >= 0; --i) {
      if (keys[i] == top) first = static_cast<unsigned>(i * 32 + lane);
    }
    const unsigned e = __reduce_min_sync(kAllLanes, first);
    if (lane == j) mine = static_cast<int>(e);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (static_cast<unsigned>(i * 32 + lane) == e) keys[i] = 0;
    }
  }
  return mine;
}

__device__ __forceinline__ uint32_t route_key(float logit, float bias) { return key_of(fast_sigmoid(logit) + bias); }

struct RouteRule {
  int experts, topk;
  bool renormalise;
  float scale;
};
// Lane j < topk: the j-th choice.
struct RouteChoice {
  int expert;
  float weight;
};

// The expert alone. keys: of the lane's experts (route_key; 0 beyond the last). candidates: kRouterCandidates of shared memory,
// chosen: kRouterTopk; of this warp.
template <int kHeld>
__device__ __forceinline__ int choose_experts(const RouteRule& r, uint32_t (&keys)[kHeld], uint2* candidates, int* chosen) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t best = largest(keys);
  int rank = 0;
#pragma unroll
  for (int l = 0; l < 32; ++l) {
    const uint32_t other = __shfl_sync(kAllLanes, best, l);
    rank += other > best || (other == best && l < lane) ? 1 : 0;
  }
  const uint32_t bound =
      max(1U, __shfl_sync(kAllLanes, best, __ffs(static_cast<int>(__ballot_sync(kAllLanes, rank == r.topk - 1))) - 1));
  int count = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {  // in the order of experts
    const bool is = keys[i] >= bound;
    const unsigned vote = __ballot_sync(kAllLanes, is);
    const int at = count + __popc(vote & ((1U << lane) - 1));
    if (is && at < kRouterCandidates) candidates[at] = {keys[i], static_cast<unsigned>(i * 32 + lane)};
    count += __popc(vote);
  }
  __syncwarp();
  int mine = 0;
  if (count <= kRouterCandidates) {
    for (int c = lane; c < count; c += 32) {
      const uint2 me = candidates[c];
      int before = 0;
#pragma unroll 8
      for (int j = 0; j < count; ++j) {
        const uint32_t other = candidates[j].x;
        before += other > me.x || (other == me.x && j < c) ? 1 : 0;
      }
      if (before < r.topk) chosen[before] = static_cast<int>(me.y);
    }
    __syncwarp();
    if (lane < r.topk) mine = chosen[lane];
  } else {
    mine = choose_one_by_one(keys, lane, r.topk);
  }
  return mine;
}

// Of lane j's choice, whose logit it brings.
__device__ __forceinline__ float weigh_expert(const RouteRule& r, float logit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float score = lane < r.topk ? route_sigmoid(logit) : 0;
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kRouterTopk; ++j) sum += __shfl_sync(kAllLanes, score, j);  // in the order of choice
  const float factor = r.renormalise ? r.scale / (sum + 1e-20F) : r.scale;
  return score * factor;
}

template <int kHeld>
__device__ __forceinline__ RouteChoice route_token(const RouteRule& r, const float* logits, uint32_t (&keys)[kHeld], uint2* candidates,
                                                   int* chosen) {
  const int mine = choose_experts(r, keys, candidates, chosen);
  return {mine, weigh_expert(r, static_cast<int>(threadIdx.x) % 32 < r.topk ? logits[mine] : 0)};
}

}  // namespace k3::ops::cuda
