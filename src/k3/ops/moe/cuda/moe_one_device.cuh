// Internal to ops/moe. What the warps of moe_one_sm90.cu share: the block's state, the products of a chunk, the routing of the token,
// the sum of its rows.
#pragma once

#include <cuda_bf16.h>

#include "k3/ops/cuda/counters.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/warp_arrive.cuh"
#include "k3/ops/moe/cuda/moe_one_types.h"
#include "k3/ops/moe/cuda/moe_stream_pack.cuh"
#include "k3/ops/router/cuda/router_token.cuh"
#include "k3/ops/situ_glu/cuda/situ_glu_cuda.cuh"

namespace k3::ops::cuda::one_token {

inline constexpr int kBuffers = kMoeOneBuffers, kFinishers = 2, kEnd = -1;

template <MoeWeights kKind>
struct Shape {
  static constexpr int kConsumers = moe_one_consumers(kKind), kStages = moe_one_stages(kKind), kBatch = kKind == MoeWeights::bf16 ? 4 : 8;
  static constexpr int kProducer = kConsumers, kBringer = kConsumers + 1, kFinisher = kConsumers + 2;  // first of two
  static constexpr int kThreads = 32 * (kConsumers + 2 + kFinishers);
  static constexpr int kBytes = static_cast<int>(moe_chunk_bytes(kKind)), kColumns = static_cast<int>(moe_chunk_columns(kKind));
};

// Of the block, not dynamic: barriers, what was routed, what is where.
template <MoeWeights kKind>
struct State {
  uint64_t full[Shape<kKind>::kStages], empty[Shape<kKind>::kStages], summed[kBuffers], taken[kBuffers], brought[kMoeOneTopk];
  uint64_t routed, weighed, shared_there, shared_done;
  int chunk_of[Shape<kKind>::kStages];  // buffer | k << 4 | phase << 12 | tile << 16, or kEnd
  int item_of[kBuffers];                // unit | phase << 16 | tile << 20, or kEnd
  int tiles, slot[kMoeOneTopk], expert[kMoeOneTopk];
  float weight[kMoeOneTopk];  // of a slot
  uint2 candidates[kRouterCandidates];
  int chosen[kRouterTopk];
};

__device__ __forceinline__ uint32_t at(const uint64_t& bar) { return shared_address(&bar); }
__device__ __forceinline__ int quotient(int x, const MoeDivisor& d) {
  return d.magic == 0 ? x : static_cast<int>(__umulhi(static_cast<uint32_t>(x), d.magic));
}

__device__ __forceinline__ float glu(const MoeGlu& kind, float gate, float up) {
  if (!kind.situ) return silu_glu(gate, up);
  const bool linear = kind.linear_beta != 0;
  const SituBetas betas = {linear ? kind.beta * kind.linear_beta : kind.beta, 1 / kind.beta, linear ? 1 / kind.linear_beta : 0};
  return linear ? situ_glu<false, true>(gate, up, betas) : situ_glu<false, false>(gate, up, betas);
}

// 16 rows of a chunk times x (BF16, from the chunk's first column on, at the lane's 8 columns): acc of column 0 in lanes q = 0.
template <MoeWeights kKind>
__device__ __forceinline__ void multiply(uint32_t chunk, uint32_t x, int lane, float (&acc)[2][4]) {
  constexpr int kGroups = Shape<kKind>::kColumns / 32;
  const bool token = lane < 4;
  const auto products = [&](int i, const uint32_t(&low)[4], const uint32_t(&high)[4]) {
    uint4 b = {0, 0, 0, 0};
    if (token) b = shared_load_16(x + static_cast<uint32_t>(i * 64));
    mma_bf16(acc[i & 1], {low[0], high[0], low[1], high[1]}, {b.x, b.y});
    mma_bf16(acc[i & 1], {low[2], high[2], low[3], high[3]}, {b.z, b.w});
  };
  const uint32_t mine = chunk + static_cast<uint32_t>(lane) * 16;
  if constexpr (kKind == MoeWeights::bf16) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const uint4 l = shared_load_16(mine + static_cast<uint32_t>(i * 1024)), h = shared_load_16(mine + static_cast<uint32_t>(i * 1024 + 512));
      products(i, {l.x, l.y, l.z, l.w}, {h.x, h.y, h.z, h.w});
    }
  } else {
    const uint4 s = shared_load_16(chunk + static_cast<uint32_t>(lane / 4 * 16));
    const uint32_t scales[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int two = 0; two < kGroups / 2; ++two) {
      const uint4 c = shared_load_16(mine + static_cast<uint32_t>(128 + two * 512));
      const uint32_t codes[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t factors = mxfp4_factors(scales[two], i);
        const __nv_bfloat162 both = *reinterpret_cast<const __nv_bfloat162*>(&factors);
        const __nv_bfloat162 factor_low = __low2bfloat162(both), factor_high = __high2bfloat162(both);
        uint32_t low[4], high[4];
        mxfp4_decode(codes[2 * i], low);
        mxfp4_decode(codes[2 * i + 1], high);
#pragma unroll
        for (int j = 0; j < 4; ++j) low[j] = mxfp4_scaled(low[j], factor_low), high[j] = mxfp4_scaled(high[j], factor_high);
        products(2 * two + i, low, high);
      }
    }
  }
}

// Experts of the token and then their weights, by one warp; shared memory gets the local ones, in the order of slots. tell: what
// waits for either may go on.
template <MoeWeights kKind>
__device__ __forceinline__ void route(const MoeOne& p, State<kKind>& s, const float* logits, bool tell) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const RouteRule rule = {p.route.experts, p.topk, p.route.renormalise, p.route.scale};
  const bool routes = p.route.logits != nullptr;
  int id = -1;
  float logit[8];
  if (routes) {
    uint32_t keys[8];
    float bias[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int e = i * 32 + lane;
      logit[i] = e < p.route.experts ? __ldcg(logits + e) : 0;
      bias[i] = e < p.route.experts && p.route.bias != nullptr ? p.route.bias[e] : 0;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) keys[i] = i * 32 + lane < p.route.experts ? route_key(logit[i], bias[i]) : 0;
    const int mine = choose_experts(rule, keys, s.candidates, s.chosen);
    if (lane < p.topk) id = mine;
  } else if (lane < p.topk) {
    id = p.ids[lane];
  }
  const int local = id - p.first_expert;
  const bool mine = lane < p.topk && local >= 0 && local < p.experts;
  const unsigned vote = __ballot_sync(0xFFFFFFFFU, mine);
  const int tile = __popc(vote & ((1U << lane) - 1));
  if (mine) {
    s.slot[tile] = lane;
    s.expert[tile] = local;
  }
  if (lane == 0) s.tiles = __popc(vote);
  if (tell) warp_arrive(at(s.routed), lane);
  float weight = 0;
  if (routes) {
    float chosen = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float held = __shfl_sync(0xFFFFFFFFU, logit[i], id & 31);
      if (id >> 5 == i) chosen = held;
    }
    weight = weigh_expert(rule, chosen);
  } else if (mine) {
    weight = p.sum.weights[lane];
  }
  if (mine) s.weight[tile] = weight;
  if (tell) warp_arrive(at(s.weighed), lane);
}

// One of a unit of rows is there; whoever brings the last adds them up. By one warp.
template <MoeWeights kKind>
__device__ __forceinline__ void arrive_rows(const MoeOne& p, const State<kKind>& s, int unit) {
  const int lane = static_cast<int>(threadIdx.x) % 32, tiles = s.tiles;
  int32_t* const counter = p.counters + kMoeOneRows + unit;
  __syncwarp();
  const int old = __shfl_sync(0xFFFFFFFFU, lane == 0 ? add_both(counter, 1) : 0, 0);
  if (old != tiles) return;
  if (lane == 0) *counter = 0;
  const int row = unit * 16 + lane;
  if (lane >= 16 || row >= p.width) return;
  float v[kMoeOneTopk];
#pragma unroll
  for (int i = 0; i < kMoeOneTopk; ++i) v[i] = i < tiles ? __ldcg(p.slot_out + static_cast<int64_t>(s.slot[i]) * p.width + row) : 0;
  const float more = p.shared.w != nullptr ? __ldcg(p.shared_out + row) : 0;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMoeOneTopk; ++i) {
    if (i < tiles) sum += s.weight[i] * v[i];
  }
  if (p.sum.out_f32 != nullptr) p.sum.out_f32[row] = sum;
  sum += more;
  if (p.sum.add != nullptr) sum += __bfloat162float(static_cast<const __nv_bfloat16*>(p.sum.add)[row]);
  static_cast<__nv_bfloat16*>(p.sum.out)[row] = __float2bfloat16(sum);
}

}  // namespace k3::ops::cuda::one_token
