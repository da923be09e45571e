#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/moe/train/cuda/moe_train.h"
#include "k3/ops/situ_glu/cuda/situ_glu_slopes.cuh"

namespace k3::ops::cuda {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFU;
constexpr int kWarps = 8;

// A warp a token: lane l has experts l, l + 32, ... in registers.
template <int kPer>
__global__ void __launch_bounds__(32 * kWarps) route_train(const RouteTrain a) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= a.tokens) return;
  const int lane = threadIdx.x & 31;
  float score[kPer], ranked[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int e = lane + 32 * i;
    score[i] = ranked[i] = -INFINITY;
    if (e >= a.experts) continue;
    score[i] = 1 / (1 + expf(-a.logits[t * a.experts + e]));
    a.scores[t * a.experts + e] = score[i];
    ranked[i] = score[i] + (a.bias != nullptr ? a.bias[e] : 0.0F);
  }
  float mine = 0, sum = 0;  // lane j keeps the weight of choice j
  int id = 0;
  for (int j = 0; j < a.topk; ++j) {
    float best = -INFINITY, value = 0;
    int at = a.experts;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (ranked[i] > best) best = ranked[i], value = score[i], at = lane + 32 * i;
    }
#pragma unroll
    for (int s = 16; s > 0; s >>= 1) {
      const float other = __shfl_xor_sync(kAll, best, s), other_value = __shfl_xor_sync(kAll, value, s);
      const int other_at = __shfl_xor_sync(kAll, at, s);
      if (other > best || (other == best && other_at < at)) best = other, value = other_value, at = other_at;
    }
    at = at < a.experts ? at : 0;  // logits that are not numbers: any expert, the loss shows it
    sum += value;
    if (lane == j) mine = value, id = at;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (at == lane + 32 * i) ranked[i] = -INFINITY;
    }
  }
  if (lane >= a.topk) return;
  a.ids[t * a.topk + lane] = id;
  a.weights[t * a.topk + lane] = mine * a.scale / (a.renormalise ? sum + 1e-20F : 1.0F);
}

__global__ void __launch_bounds__(32 * kWarps) route_vjp(const RouteTrain a) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= a.tokens) return;
  const int lane = threadIdx.x & 31;
  for (int e = lane; e < a.experts; e += 32) a.dlogits[t * a.experts + e] = 0;
  __syncwarp();
  const bool chosen = lane < a.topk;
  const int id = chosen ? a.ids[t * a.topk + lane] : 0;
  const float s = chosen ? a.scores[t * a.experts + id] : 0, dw = chosen ? a.dweights[t * a.topk + lane] : 0;
  const float sum = warp_sum(s), along = warp_sum(chosen ? a.weights[t * a.topk + lane] * dw : 0);
  float ds = a.scale * dw;
  if (a.renormalise) ds = (ds - along) / (sum + 1e-20F);
  if (chosen) a.dlogits[t * a.experts + id] = ds * s * (1 - s);
}

// Slots of a block that have the expert, before this one: by warps, in order.
__device__ __forceinline__ int rank_in_block(int expert, int experts, int32_t* counts, bool valid) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  for (int i = threadIdx.x; i < kWarps * experts; i += kSortSlots) counts[i] = 0;
  __syncthreads();
  const unsigned alike = __match_any_sync(kAll, valid ? expert : -1);
  const int before = __popc(alike & ((1U << lane) - 1));
  if (valid && before == 0) counts[warp * experts + expert] = __popc(alike);
  __syncthreads();
  return before;
}

__global__ void __launch_bounds__(kSortSlots) count_slots(const SortSlots a) {
  extern __shared__ int32_t counts[];
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kSortSlots + threadIdx.x;
  const bool valid = slot < a.slots;
  rank_in_block(valid ? a.ids[slot] : 0, a.experts, counts, valid);
  for (int e = threadIdx.x; e < a.experts; e += kSortSlots) {
    int sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += counts[w * a.experts + e];
    a.counts[static_cast<int64_t>(e) * gridDim.x + blockIdx.x] = sum;
  }
}

// A warp an expert: counts become what lies in the blocks before.
__global__ void scan_blocks(const SortSlots a, int blocks) {
  const int e = static_cast<int>(blockIdx.x), lane = threadIdx.x;
  int32_t* const counts = a.counts + static_cast<int64_t>(e) * blocks;
  int sum = 0;
  for (int first = 0; first < blocks; first += 32) {
    const int own = first + lane < blocks ? counts[first + lane] : 0;
    int upto = own;
#pragma unroll
    for (int s = 1; s < 32; s <<= 1) {
      const int other = __shfl_up_sync(kAll, upto, s);
      if (lane >= s) upto += other;
    }
    if (first + lane < blocks) counts[first + lane] = sum + upto - own;
    sum += __shfl_sync(kAll, upto, 31);
  }
  if (lane == 0) a.totals[e] = sum;
}

__global__ void __launch_bounds__(kSortSlots) place_slots(const SortSlots a) {
  extern __shared__ int32_t memory[];
  int32_t* const counts = memory;                           // [kWarps, E]
  int32_t* const first = memory + kWarps * a.experts;       // [E + 1]
  if (threadIdx.x < 32) {  // a running sum of the experts' totals
    int sum = 0;
    for (int e0 = 0; e0 < a.experts; e0 += 32) {
      const int e = e0 + static_cast<int>(threadIdx.x), own = e < a.experts ? a.totals[e] : 0;
      int upto = own;
#pragma unroll
      for (int s = 1; s < 32; s <<= 1) {
        const int other = __shfl_up_sync(kAll, upto, s);
        if (threadIdx.x >= s) upto += other;
      }
      if (e < a.experts) first[e] = sum + upto - own;
      sum += __shfl_sync(kAll, upto, 31);
    }
    if (threadIdx.x == 0) first[a.experts] = sum;
  }
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kSortSlots + threadIdx.x;
  const bool valid = slot < a.slots;
  const int expert = valid ? a.ids[slot] : 0;
  int rank = rank_in_block(expert, a.experts, counts, valid);
  if (blockIdx.x == 0) {
    for (int e = threadIdx.x; e <= a.experts; e += kSortSlots) a.offsets[e] = first[e];
  }
  if (!valid) return;
  for (int w = 0; w < static_cast<int>(threadIdx.x) / 32; ++w) rank += counts[w * a.experts + expert];
  const int position = first[expert] + a.counts[static_cast<int64_t>(expert) * gridDim.x + blockIdx.x] + rank;
  a.position_of[slot] = position;
  a.slot_of[position] = static_cast<int32_t>(slot);
  a.token_of[position] = static_cast<int32_t>(slot / a.topk);
}

// Rows of kWide or single numbers.
template <bool kWide>
__global__ void gather_train(const void* from, const int32_t* token_of, int64_t positions, int64_t width, void* to) {
  const int64_t per = kWide ? width / 8 : width, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < positions * per; i += step) {
    const int64_t source = token_of[i / per] * per + i % per;
    if constexpr (kWide) {
      static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[source];
    } else {
      static_cast<__nv_bfloat16*>(to)[i] = static_cast<const __nv_bfloat16*>(from)[source];
    }
  }
}

template <bool kWide>
__global__ void scatter_train(const ScatterTrain a) {
  const int64_t per = kWide ? a.width / 8 : a.width, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.tokens * per; i += step) {
    const int64_t t = i / per, column = i % per;
    float sum[kWide ? 8 : 1] = {}, x[8];
    if (a.accumulate) {
      if constexpr (kWide) {
        unpack8(static_cast<const uint4*>(a.to)[i], sum);
      } else {
        sum[0] = __bfloat162float(static_cast<const __nv_bfloat16*>(a.to)[i]);
      }
    }
    for (int j = 0; j < a.topk; ++j) {
      const int64_t at = a.position_of[t * a.topk + j] * per + column;
      const float factor = a.factors != nullptr ? a.factors[t * a.topk + j] : 1.0F;
      if constexpr (kWide) {
        unpack8(static_cast<const uint4*>(a.rows)[at], x);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e] += factor * x[e];
      } else {
        sum[0] += factor * __bfloat162float(static_cast<const __nv_bfloat16*>(a.rows)[at]);
      }
    }
    if constexpr (kWide) {
      static_cast<uint4*>(a.to)[i] = pack8(sum);
    } else {
      static_cast<__nv_bfloat16*>(a.to)[i] = __float2bfloat16(sum[0]);
    }
  }
}

// A warp a position; widths are even.
__global__ void __launch_bounds__(32 * kWarps) expert_vjp(const ExpertVjp a) {
  const GluKindArgs kind{a.situ, a.beta, a.linear_beta};
  const int64_t p = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (p >= a.positions) return;
  const int lane = threadIdx.x & 31, slot = a.slot_of[p], pairs = static_cast<int>(a.width / 2);
  const float factor = a.weights[slot];
  const int64_t row = p * pairs;
  const auto* const gate = static_cast<const uint32_t*>(a.gate) + row;
  const auto* const up = static_cast<const uint32_t*>(a.up) + row;
  const auto* const dh = static_cast<const uint32_t*>(a.dh) + row;
  uint32_t* const h = static_cast<uint32_t*>(a.h) + row;
  float along = 0;
  for (int i = lane; i < pairs; i += 32) {
    const uint32_t g = gate[i], u = up[i], d = dh[i], v = h[i];
    along += low_bf16(d) * low_bf16(v) + high_bf16(d) * high_bf16(v);
    const GluSlopes low = glu_slopes(low_bf16(g), low_bf16(u), kind), high = glu_slopes(high_bf16(g), high_bf16(u), kind);
    const float d0 = factor * low_bf16(d), d1 = factor * high_bf16(d);
    static_cast<uint32_t*>(a.dgate)[row + i] = pack_bf16(d0 * low.gate, d1 * high.gate);
    static_cast<uint32_t*>(a.dup)[row + i] = pack_bf16(d0 * low.up, d1 * high.up);
    h[i] = pack_bf16(factor * low_bf16(v), factor * high_bf16(v));
  }
  along = warp_sum(along);
  if (lane == 0) a.dweights[slot] = along;
}

dim3 tokens_grid(int64_t tokens) { return dim3(static_cast<unsigned>((tokens + kWarps - 1) / kWarps)); }
dim3 flat_grid(int64_t work) {
  const int64_t blocks = (work + 255) / 256;
  return dim3(static_cast<unsigned>(blocks < 16384 ? blocks : 16384));
}
cudaStream_t on(void* stream) { return static_cast<cudaStream_t>(stream); }
bool wide(const void* x, const void* y, int64_t width) {
  return width % 8 == 0 && ((reinterpret_cast<uint64_t>(x) | reinterpret_cast<uint64_t>(y)) & 15) == 0;
}

}  // namespace

int route_train_launch(const RouteTrain& a, void* stream) {
  if (a.tokens == 0) return 0;
  const LaunchOptions options{.grid = tokens_grid(a.tokens), .block = dim3(32 * kWarps)};
  if (a.experts <= 32) return launch(route_train<1>, options, on(stream), a);
  if (a.experts <= 128) return launch(route_train<4>, options, on(stream), a);
  if (a.experts <= 256) return launch(route_train<8>, options, on(stream), a);
  return launch(route_train<32>, options, on(stream), a);
}

int route_vjp_launch(const RouteTrain& a, void* stream) {
  if (a.tokens == 0) return 0;
  return launch(route_vjp, {.grid = tokens_grid(a.tokens), .block = dim3(32 * kWarps)}, on(stream), a);
}

int sort_slots_launch(const SortSlots& a, void* stream) {
  const auto blocks = static_cast<unsigned>(sort_blocks(a.slots));
  if (blocks == 0) return 0;
  const int shared = kWarps * a.experts * 4;
  if (const int code = launch(count_slots, {.grid = dim3(blocks), .block = dim3(kSortSlots), .shared_bytes = shared}, on(stream), a); code != 0) return code;
  if (const int code = launch(scan_blocks, {.grid = dim3(static_cast<unsigned>(a.experts)), .block = dim3(32)}, on(stream), a, static_cast<int>(blocks));
      code != 0) {
    return code;
  }
  return launch(place_slots, {.grid = dim3(blocks), .block = dim3(kSortSlots), .shared_bytes = shared + (a.experts + 1) * 4}, on(stream), a);
}

int gather_train_launch(const void* from, const int32_t* token_of, int64_t positions, int64_t width, void* to, void* stream) {
  if (positions == 0) return 0;
  const bool fast = wide(from, to, width);
  return launch(fast ? gather_train<true> : gather_train<false>, {.grid = flat_grid(positions * (fast ? width / 8 : width)), .block = dim3(256)},
                on(stream), from, token_of, positions, width, to);
}

int scatter_train_launch(const ScatterTrain& a, void* stream) {
  if (a.tokens == 0) return 0;
  const bool fast = wide(a.rows, a.to, a.width);
  return launch(fast ? scatter_train<true> : scatter_train<false>, {.grid = flat_grid(a.tokens * (fast ? a.width / 8 : a.width)), .block = dim3(256)},
                on(stream), a);
}

int expert_vjp_launch(const ExpertVjp& a, void* stream) {
  if (a.positions == 0) return 0;
  if (a.width % 2 != 0) return static_cast<int>(cudaErrorInvalidValue);
  return launch(expert_vjp, {.grid = tokens_grid(a.positions), .block = dim3(32 * kWarps)}, on(stream), a);
}

}  // namespace k3::ops::cuda
