// The row tiles of grouped products, and activations in the column order of the packed weights.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/moe/cuda/moe_grouped_types.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 1024;

// One block; thread e has expert e. An expert's rows become tiles of nearly equal size, each a multiple of 8 but the last.
__global__ void __launch_bounds__(kThreads) tiles_of(const MoeGroupedTiles p) {
  __shared__ int warp_total[kThreads / 32];
  const int e = static_cast<int>(threadIdx.x), lane = e % 32, warp = e / 32;
  const int begin = e < p.experts ? p.offsets[e] : 0, rows = e < p.experts ? p.offsets[e + 1] - begin : 0;
  const int count = (rows + kMoeGroupedRows - 1) / kMoeGroupedRows;
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
    p.tiles[first + i] = {e, begin + from, max(0, min(each, rows - from)), 0};
  }
}

// A thread a group of 32 columns: column 8 t + 4 p + 2 h + i goes to 16 p + 8 h + 2 t + i.
__global__ void permute(const MoeGroupedPermute p) {
  const int groups = (p.width + 31) / 32;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= static_cast<int64_t>(p.tokens) * groups) return;
  const int64_t row = at / groups;
  const int group = static_cast<int>(at % groups);
  const uint4* from = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.z) + row * p.z_stride + group * 32);
  uint4* to = static_cast<uint4*>(p.out) + at * 4;
  uint32_t in[4][4];  // [t][2 p + h]
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const uint4 v = group * 32 + 8 * t < p.width ? from[t] : uint4{};
    in[t][0] = v.x, in[t][1] = v.y, in[t][2] = v.z, in[t][3] = v.w;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = {in[0][i], in[1][i], in[2][i], in[3][i]};
}

}  // namespace

int moe_grouped_tiles_launch(const MoeGroupedTiles& tiles, cudaStream_t stream) {
  return launch(tiles_of, {.grid = 1, .block = kThreads}, stream, tiles);
}

int moe_grouped_permute_launch(const MoeGroupedPermute& p, cudaStream_t stream) {
  const int64_t threads = static_cast<int64_t>(p.tokens) * ((p.width + 31) / 32);
  if (threads == 0) return 0;
  return launch(permute, {.grid = static_cast<unsigned>((threads + 255) / 256), .block = 256}, stream, p);
}

}  // namespace k3::ops::cuda
