// Experts from host memory to slots. One block decides, many copy: plain loads, enough of them in flight for the bus, by few
// blocks, so that other kernels find multiprocessors.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 1024, kCopyThreads = 256, kCopyBlocks = 32;
constexpr int kInFlight = 4;                                // loads of 16 bytes of a thread
constexpr int64_t kPiece = kCopyThreads * kInFlight * 16;  // bytes of a block at a time
static_assert(kThreads >= kMoeMaxExperts, "a thread an expert, a thread a slot");

// How many of values[0, count) come before `mine` at place `at`: higher ones, or lower ones, ties by place. `values` is filled up
// to a multiple of 4 with what never comes before.
template <bool kHigher>
__device__ int rank_of(const float* values, int count, float mine, int at) {
  int rank = 0;
  for (int i = 0; i < count; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(values + i);
    const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) rank += (kHigher ? four[j] > mine : four[j] < mine) || (four[j] == mine && i + j < at) ? 1 : 0;
  }
  return rank;
}

__global__ void __launch_bounds__(kThreads) decide(const __grid_constant__ MoeFetch p) {
  __shared__ int uses[kMoeMaxExperts];
  __shared__ float scores[kMoeMaxExperts];
  __shared__ __align__(16) float wanting[kMoeMaxExperts], holding[kMoeMaxExperts];
  __shared__ int16_t taker[kMoeMaxExperts], giver[kMoeMaxExperts];
  constexpr float kNever = 3e38F;
  const int tid = static_cast<int>(threadIdx.x);
  uses[tid] = 0;
  pdl_wait();
  pdl_release();
  __syncthreads();
  for (int i = tid; i < p.tokens * p.topk; i += kThreads) {
    const int e = p.ids[i] - p.first_expert;
    if (e >= 0 && e < p.experts) atomicAdd(&uses[e], 1);
  }
  __syncthreads();
  const bool expert = tid < p.experts, wanted = expert && uses[tid] > 0;
  const bool missing = wanted && p.slot[tid] < 0;
  float score = 0;
  if (expert) {
    score = fmaf(p.score[tid], p.keep, static_cast<float>(uses[tid]));
    p.score[tid] = score;
    if (p.uses != nullptr) p.uses[tid] += static_cast<uint64_t>(uses[tid]);
  }
  scores[tid] = score;
  wanting[tid] = missing ? score : -1;  // scores of wanted experts are at least 1
  const int all = __syncthreads_count(wanted), candidates = __syncthreads_count(missing);
  int victims = 0;
  const int owner = tid < p.slots ? p.owner[tid] : -1;
  const bool free = tid < p.slots && (owner < 0 || uses[owner] == 0);
  const float held = owner < 0 ? -1 : scores[owner];
  if (p.admit && candidates > 0) {
    holding[tid] = free ? held : kNever;
    victims = __syncthreads_count(free);
    if (missing) taker[rank_of<true>(wanting, p.experts, score, tid)] = static_cast<int16_t>(tid);
    if (free) giver[rank_of<false>(holding, p.slots, held, tid)] = static_cast<int16_t>(tid);
    __syncthreads();
  }
  // Takers fall, givers rise: those that change places are a beginning of both.
  bool admitted = false;
  if (tid < min(candidates, victims)) {
    const int e = taker[tid], s = giver[tid];
    admitted = scores[e] > holding[s];
    if (admitted) {
      const int old = p.owner[s];
      if (old >= 0) p.slot[old] = -1;
      p.owner[s] = e;
      p.slot[e] = p.first_slot + s;
      p.list[1 + 2 * tid] = e;
      p.list[2 + 2 * tid] = p.first_slot + s;
    }
  }
  const int count = __syncthreads_count(admitted);
  if (tid == 0) {
    p.list[0] = count;
    p.counts->wanted += static_cast<uint64_t>(all);
    p.counts->missing += static_cast<uint64_t>(candidates);
    p.counts->admitted += static_cast<uint64_t>(count);
  }
}

__device__ __forceinline__ uint4 load_once(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

__global__ void __launch_bounds__(kCopyThreads) copy(const __grid_constant__ MoeFetch p) {
  pdl_wait();
  pdl_release();
  const int64_t bytes = p.places.expert_bytes, pieces = (bytes + kPiece - 1) / kPiece;
  const int64_t all = p.list[0] * pieces;
  for (int64_t i = blockIdx.x; i < all; i += gridDim.x) {
    const int item = static_cast<int>(i / pieces);
    const int64_t begin = i % pieces * kPiece + static_cast<int64_t>(threadIdx.x) * 16;
    const uint8_t* from = p.places.host + p.list[1 + 2 * item] * bytes;
    uint8_t* to = const_cast<uint8_t*>(p.places.slots) + p.list[2 + 2 * item] * bytes;
    uint4 v[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int64_t at = begin + j * kCopyThreads * 16;
      if (at < bytes) v[j] = load_once(reinterpret_cast<const uint4*>(from + at));
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int64_t at = begin + j * kCopyThreads * 16;
      if (at < bytes) *reinterpret_cast<uint4*>(to + at) = v[j];
    }
  }
}

}  // namespace

int moe_fetch_launch(const MoeFetch& p, CUstream_st* stream) {
  const LaunchOptions one{.grid = dim3(1), .block = dim3(kThreads), .dependent = true};
  if (const int code = launch(decide, one, stream, p); code != 0) return code;
  if (!p.admit || p.slots == 0) return 0;
  const LaunchOptions many{.grid = dim3(kCopyBlocks), .block = dim3(kCopyThreads), .dependent = true};
  return launch(copy, many, stream, p);
}

}  // namespace k3::ops::cuda
