#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/train_rows.h"

namespace k3::ops::cuda {
namespace {

constexpr int kParts = 8;  // warps that share a long list of tokens

__global__ void embed(const int32_t* ids, int64_t tokens, int64_t vocab, const __nv_bfloat16* table, int64_t width, __nv_bfloat16* out) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    const int64_t id = ids[t];
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      out[t * width + i] = id >= 0 && id < vocab ? table[id * width + i] : __float2bfloat16(0);
    }
  }
}

// A block an id and 64 columns: warp w adds tokens w, w + 8, ... of its list, then the eight sums are added in order.
__global__ void __launch_bounds__(32 * kParts) embed_vjp(const int32_t* order, const int32_t* starts, const int32_t* ids, const __nv_bfloat16* dout,
                                                         int64_t width, float* dtable) {
  __shared__ float2 parts[kParts][32];
  const int lane = threadIdx.x & 31, part = threadIdx.x / 32, begin = starts[blockIdx.x], end = starts[blockIdx.x + 1];
  const int64_t column = static_cast<int64_t>(blockIdx.y) * 64 + 2 * lane;
  float2 sum = {0, 0};
  if (column < width) {
    const bool two = column + 1 < width;
#pragma unroll 4
    for (int i = begin + part; i < end; i += kParts) {
      const __nv_bfloat16* const row = dout + order[i] * width + column;
      sum.x += __bfloat162float(row[0]);
      if (two) sum.y += __bfloat162float(row[1]);
    }
  }
  parts[part][lane] = sum;
  __syncthreads();
  if (part != 0 || column >= width) return;
  for (int p = 1; p < kParts; ++p) sum.x += parts[p][lane].x, sum.y += parts[p][lane].y;
  float* const to = dtable + ids[blockIdx.x] * width + column;
  to[0] += sum.x;
  if (column + 1 < width) to[1] += sum.y;
}

}  // namespace

int embedding_train_launch(const int32_t* ids, int64_t tokens, int64_t vocab, const void* table, int64_t width, void* out, void* stream) {
  if (tokens == 0) return 0;
  return launch(embed, {.grid = dim3(static_cast<unsigned>(tokens < 16384 ? tokens : 16384)), .block = dim3(128)}, static_cast<cudaStream_t>(stream),
                ids, tokens, vocab, static_cast<const __nv_bfloat16*>(table), width, static_cast<__nv_bfloat16*>(out));
}

int embedding_vjp_launch(const int32_t* order, const int32_t* starts, const int32_t* ids, int64_t distinct, const void* dout, int64_t width,
                         float* dtable, void* stream) {
  if (distinct == 0) return 0;
  return launch(embed_vjp, {.grid = dim3(static_cast<unsigned>(distinct), static_cast<unsigned>((width + 63) / 64)), .block = dim3(32 * kParts)},
                static_cast<cudaStream_t>(stream), order, starts, ids, static_cast<const __nv_bfloat16*>(dout), width, dtable);
}

}  // namespace k3::ops::cuda
