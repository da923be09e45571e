// The row tiles of grouped products, and activations in the order of the packed weights.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/moe/cuda/moe_grouped_types.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kGatherEach = 4;  // pieces of 16 bytes a thread

// How many threads of the block before this one say yes.
__device__ int count_before(bool yes) {
  __shared__ int of_warp[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned votes = __ballot_sync(0xFFFFFFFFU, yes);
  if (lane == 0) of_warp[warp] = __popc(votes);
  __syncthreads();
  int before = __popc(votes & ((1U << lane) - 1));
  for (int w = 0; w < warp; ++w) before += of_warp[w];
  return before;
}

// One block; thread e has expert e. An expert's rows become tiles of nearly equal size, each a multiple of 8
// but the last; `reserved`: its number among them, and 65,536 times how many they are.
__global__ void __launch_bounds__(kThreads) tiles_of(const MoeGroupedTiles p) {
  __shared__ int warp_total[kThreads / 32];
  const int e = static_cast<int>(threadIdx.x), lane = e % 32, warp = e / 32;
  const bool mine = e >= p.begin && e < p.end;
  const int begin = mine ? p.offsets[e] : 0, rows = mine ? p.offsets[e + 1] - begin : 0;
  if (p.places != nullptr) {
    const int slot = mine ? p.places[e] : 0;
    const int before = count_before(slot < 0);
    if (mine) p.slot[e] = slot < 0 && p.staged >= 0 ? p.staged + before : slot;
  }
  const int count = (rows + p.most - 1) / p.most;
  int sum = count;  // inclusive over the warp
  for (int i = 1; i < 32; i *= 2) {
    const int below = __shfl_up_sync(0xFFFFFFFFU, sum, i);
    if (lane >= i) sum += below;
  }
  if (lane == 31) warp_total[warp] = sum;
  __syncthreads();
  int first = sum - count, total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) first += warp_total[w];
    total += warp_total[w];
  }
  if (e == 0) *p.header = {total, {0, 0}, {}};
  if (count == 0) return;
  const int each = ((rows + count - 1) / count + 7) / 8 * 8;
  for (int i = 0; i < count; ++i) {
    const int from = i * each;
    p.tiles[first + i] = {e, begin + from, min(each, rows - from), i | count << 16};
  }
}

// Column 8 t + 4 p + 2 h + i goes to 16 p + 8 h + 2 t + i: in words of two columns, 4 x 4 words of a group of 32 are
// transposed. Four lanes hold a group, lane t word 2 p + h.
__global__ void gather(const MoeGroupedGather p) {
  const int chunks = (p.width + 31) / 32 * 4, lane = static_cast<int>(threadIdx.x) % 4;
  const int64_t count = static_cast<int64_t>(p.rows) * chunks,
                block = static_cast<int64_t>(blockIdx.x) * kGatherEach * blockDim.x;
  uint4 v[kGatherEach];
  bool there[kGatherEach];
#pragma unroll
  for (int k = 0; k < kGatherEach; ++k) {
    const int64_t at = block + k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x), row = at / chunks;
    const int chunk = static_cast<int>(at - row * chunks), slot = at < count ? p.row_slot[row] : -1;
    there[k] = slot >= 0;
    v[k] = there[k] && chunk * 8 < p.width ? *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.z) +
                                                                             slot / p.topk * p.z_stride + chunk * 8)
                                           : uint4{};
  }
#pragma unroll
  for (int k = 0; k < kGatherEach; ++k) {
    uint4 w = v[k];
    const bool odd = lane % 2 != 0, high = lane >= 2;
    uint32_t a = __shfl_xor_sync(0xFFFFFFFFU, odd ? w.x : w.y, 1), b = __shfl_xor_sync(0xFFFFFFFFU, odd ? w.z : w.w, 1);
    w = odd ? uint4{a, w.y, b, w.w} : uint4{w.x, a, w.z, b};
    a = __shfl_xor_sync(0xFFFFFFFFU, high ? w.x : w.z, 2), b = __shfl_xor_sync(0xFFFFFFFFU, high ? w.y : w.w, 2);
    w = high ? uint4{a, b, w.z, w.w} : uint4{w.x, w.y, a, b};
    if (there[k]) static_cast<uint4*>(p.out)[block + k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)] = w;
  }
}

// A block a token, 8 columns a thread.
__global__ void combine(const MoeGroupedCombine p) {
  __shared__ float warp_squares[32];
  const int token = static_cast<int>(blockIdx.x), column = static_cast<int>(threadIdx.x) * 8;
  if (p.token_count != nullptr && token >= *p.token_count) return;
  const bool mine = column < p.width;
  float sum[8] = {};
  constexpr int kBatch = 8;  // rows on their way at once
  for (int first = 0; first < p.topk; first += kBatch) {
    uint4 v[kBatch];
    float weight[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int slot = token * p.topk + first + j, row = first + j < p.topk ? p.slot_row[slot] : -1;
      const bool there = row >= 0 && mine;
      weight[j] = there ? p.weights[slot] : 0;
      v[j] = there ? *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.rows) +
                                                     static_cast<int64_t>(row) * p.width + column)
                   : uint4{};
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const uint32_t words[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[2 * i] = fmaf(weight[j], low_bf16(words[i]), sum[2 * i]);
        sum[2 * i + 1] = fmaf(weight[j], high_bf16(words[i]), sum[2 * i + 1]);
      }
    }
  }
  const int64_t at = static_cast<int64_t>(token) * p.width + column;
  if (p.out_f32 != nullptr && mine) {
#pragma unroll
    for (int i = 0; i < 8; ++i) p.out_f32[at + i] = sum[i];
  }
  if (p.out == nullptr) return;
  uint4 rounded = {pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]),
                   pack_bf16(sum[6], sum[7])};
  if (p.norm_weight != nullptr) {
    uint32_t words[4] = {rounded.x, rounded.y, rounded.z, rounded.w};
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      squares += low_bf16(words[i]) * low_bf16(words[i]) + high_bf16(words[i]) * high_bf16(words[i]);
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) warp_squares[threadIdx.x / 32] = squares;
    __syncthreads();
    float total = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) total += warp_squares[w];
    const float scale = rsqrtf(total / static_cast<float>(p.width) + p.eps);
    if (mine) {
      const uint4 gain = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.norm_weight) + column);
      const uint32_t gains[4] = {gain.x, gain.y, gain.z, gain.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] =
            pack_bf16(low_bf16(words[i]) * scale * low_bf16(gains[i]), high_bf16(words[i]) * scale * high_bf16(gains[i]));
    }
    rounded = {words[0], words[1], words[2], words[3]};
  }
  if (mine) *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + at) = rounded;
}

}  // namespace

int moe_grouped_tiles_launch(const MoeGroupedTiles& tiles, cudaStream_t stream) {
  return launch(tiles_of, {.grid = 1, .block = kThreads}, stream, tiles);
}

int moe_grouped_gather_launch(const MoeGroupedGather& p, cudaStream_t stream) {
  const int64_t chunks = static_cast<int64_t>(p.rows) * ((p.width + 31) / 32) * 4, each = 256 * kGatherEach;
  if (chunks == 0) return 0;
  return launch(gather, {.grid = static_cast<unsigned>((chunks + each - 1) / each), .block = 256}, stream, p);
}

int moe_grouped_combine_launch(const MoeGroupedCombine& p, cudaStream_t stream) {
  const int threads = (p.width / 8 + 31) / 32 * 32;
  return launch(combine, {.grid = static_cast<unsigned>(p.tokens), .block = static_cast<unsigned>(threads)}, stream, p);
}

}  // namespace k3::ops::cuda
