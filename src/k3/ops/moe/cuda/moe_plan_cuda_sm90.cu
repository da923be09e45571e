// Counting sort by expert. A block holds one bit per (expert, token) of its 512 tokens, so that a slot's rank among its
// expert's is a count of bits: deterministic, no order of atomics enters. Up to 512 tokens: one launch of one block; more:
// count, scan, place.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 1024;
static_assert(kThreads >= kMoeMaxExperts, "a thread an expert");

__device__ int token_total(const MoePlanCuda& p) {
  if (p.token_count == nullptr) return p.tokens;
  const int count = *p.token_count;
  return count < 0 ? 0 : count < p.tokens ? count : p.tokens;
}

// Exclusive sums of two values over the block, and their totals.
struct Sums {
  int first, second, first_total, second_total;
};
__device__ Sums block_sums(int first, int second) {
  __shared__ int2 warp_totals[32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int a = first, b = second;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const int up_a = __shfl_up_sync(0xFFFFFFFFU, a, i), up_b = __shfl_up_sync(0xFFFFFFFFU, b, i);
    if (lane >= i) a += up_a, b += up_b;
  }
  if (lane == 31) warp_totals[warp] = {a, b};
  __syncthreads();
  int2 total = warp_totals[lane];
  int before_a = lane < warp ? total.x : 0, before_b = lane < warp ? total.y : 0;
#pragma unroll
  for (int i = 16; i > 0; i >>= 1) {
    before_a += __shfl_xor_sync(0xFFFFFFFFU, before_a, i);
    before_b += __shfl_xor_sync(0xFFFFFFFFU, before_b, i);
    total.x += __shfl_xor_sync(0xFFFFFFFFU, total.x, i);
    total.y += __shfl_xor_sync(0xFFFFFFFFU, total.y, i);
  }
  return {before_a + a - first, before_b + b - second, total.x, total.y};
}

// Offsets, tiles and the fill of row_slot, once the thread of each expert knows its count. Returns the expert's first row.
__device__ int finish_counts(const MoePlanCuda& p, int count) {
  const int e = static_cast<int>(threadIdx.x);
  const int tiles = (count + p.tile_rows - 1) / p.tile_rows;
  const Sums sums = block_sums(count, tiles);
  if (e < p.experts) p.offsets[e] = sums.first;
  if (e == 0) {
    p.offsets[p.experts] = sums.first_total;
    if (p.tile_count != nullptr) *p.tile_count = sums.second_total;
  }
  if (p.tiles != nullptr) {
    for (int i = 0; i < tiles; ++i) {
      const int row = i * p.tile_rows, left = count - row;
      p.tiles[sums.second + i] = {e, sums.first + row, left < p.tile_rows ? left : p.tile_rows, 0};
    }
  }
  if (p.row_slot != nullptr) {
    for (int row = sums.first_total + e; row < p.tokens * p.topk; row += kThreads) p.row_slot[row] = -1;
  }
  return sums.first;
}

enum class Part { all, count, place };

// bits[word][expert]: tokens of this block, 32 a word.
template <Part kPart>
__global__ void __launch_bounds__(kThreads) plan(const __grid_constant__ MoePlanCuda p, int words) {
  K3_SHARED_BYTES(memory, 4);
  auto* const bits = reinterpret_cast<uint32_t*>(memory);
  __shared__ int first_row[kMoeMaxExperts];
  const int tid = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  for (int i = tid; i < words * p.experts; i += kThreads) bits[i] = 0;
  pdl_wait();
  pdl_release();
  __syncthreads();
  const int token0 = block * static_cast<int>(kMoePlanTokens), slot0 = token0 * p.topk;
  const int ours = min(p.tokens - token0, static_cast<int>(kMoePlanTokens)) * p.topk;
  const int valid = (token_total(p) - token0) * p.topk;  // slots of real tokens
  for (int i = tid; i < ours && i < valid; i += kThreads) {
    const int e = p.ids[slot0 + i] - p.first_expert, token = i / p.topk;
    if (e >= 0 && e < p.experts) atomicOr(&bits[token / 32 * p.experts + e], 1U << (token % 32));
  }
  __syncthreads();
  if constexpr (kPart == Part::place) {
    if (tid < p.experts) first_row[tid] = static_cast<const int*>(p.workspace)[block * p.experts + tid];
  } else {
    int count = 0;
    if (tid < p.experts) {
      for (int w = 0; w < words; ++w) count += __popc(bits[w * p.experts + tid]);
    }
    if constexpr (kPart == Part::count) {
      if (tid < p.experts) static_cast<int*>(p.workspace)[block * p.experts + tid] = count;
      return;
    } else {
      first_row[tid] = finish_counts(p, count);
    }
  }
  __syncthreads();
  for (int i = tid; i < ours; i += kThreads) {
    const int e = i < valid ? p.ids[slot0 + i] - p.first_expert : -1, token = i / p.topk;
    int row = -1;
    if (e >= 0 && e < p.experts) {
      row = first_row[e];
      for (int w = 0; w < token / 32; ++w) row += __popc(bits[w * p.experts + e]);
      row += __popc(bits[token / 32 * p.experts + e] & ((1U << (token % 32)) - 1));
      if (p.row_slot != nullptr) p.row_slot[row] = slot0 + i;
    }
    if (p.slot_row != nullptr) p.slot_row[slot0 + i] = row;
  }
}

// Counts of all blocks become first rows.
__global__ void __launch_bounds__(kThreads) scan(const __grid_constant__ MoePlanCuda p, int blocks) {
  pdl_wait();
  pdl_release();
  const int e = static_cast<int>(threadIdx.x);
  int* counts = static_cast<int*>(p.workspace);
  int count = 0;
  if (e < p.experts) {
    for (int b = 0; b < blocks; ++b) count += counts[b * p.experts + e];
  }
  int row = finish_counts(p, count);
  if (e < p.experts) {
    for (int b = 0; b < blocks; ++b) {
      const int mine = counts[b * p.experts + e];
      counts[b * p.experts + e] = row;
      row += mine;
    }
  }
}

}  // namespace

int moe_plan_launch(const MoePlanCuda& p, CUstream_st* stream) {
  const int blocks = (p.tokens + static_cast<int>(kMoePlanTokens) - 1) / static_cast<int>(kMoePlanTokens);
  const int words = ((p.tokens < kMoePlanTokens ? p.tokens : static_cast<int>(kMoePlanTokens)) + 31) / 32;
  LaunchOptions o{.grid = dim3(static_cast<unsigned>(blocks < 1 ? 1 : blocks)),
                  .block = dim3(kThreads),
                  .shared_bytes = words * p.experts * 4,
                  .dependent = true};
  if (blocks <= 1) return launch(plan<Part::all>, o, stream, p, words);
  if (const int code = launch(plan<Part::count>, o, stream, p, words); code != 0) return code;
  LaunchOptions one{.grid = dim3(1), .block = dim3(kThreads), .dependent = true};
  if (const int code = launch(scan, one, stream, p, blocks); code != 0) return code;
  return launch(plan<Part::place>, o, stream, p, words);
}

}  // namespace k3::ops::cuda
