// Rows in and out of the latent cache; a warp a row.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/mla/cuda/mla_launch.cuh"
#include "k3/ops/mla/cuda/mla_rows.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kWarps = 4;

// The request of a packed row; -1 behind the last.
__device__ int request_of(const int32_t* offsets, int batch, int row) {
  if (row >= offsets[batch]) return -1;
  int low = 0, high = batch;  // offsets[low] <= row < offsets[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (offsets[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

__global__ void __launch_bounds__(32 * kWarps) append(const LatentAppend p) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32;
  dependent_begin();
  if (row >= p.tokens) return;
  const int request = request_of(p.offsets, static_cast<int>(p.batch), row);
  if (request < 0) return;
  store_row(page_row(p.pages, request, p.history[request] + row - p.offsets[request]), normalised_row(p, row, lane), lane);
}

__global__ void __launch_bounds__(32 * kWarps) gather(const LatentGather p) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32;
  dependent_begin();
  if (row >= p.tokens) return;
  const int at = static_cast<int>(p.first) + row, request = request_of(p.offsets, static_cast<int>(p.batch), at);
  if (request < 0) return;
  const uint4* from = reinterpret_cast<const uint4*>(page_row(p.pages, request, at - p.offsets[request]));
  uint4* to = reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + row * p.out_stride);
  const uint4 first = from[lane], second = from[32 + lane];
  if (lane < 8) to[64 + lane] = from[64 + lane];
  to[lane] = first;
  to[32 + lane] = second;
}

LaunchOptions options_of(int64_t rows) {
  return {.grid = dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)), .block = dim3(32 * kWarps), .dependent = true};
}

}  // namespace

int latent_append_launch(const LatentAppend& p, cudaStream_t stream) {
  return launch(append, options_of(p.tokens), stream, p);
}

int latent_gather_launch(const LatentGather& p, cudaStream_t stream) {
  return launch(gather, options_of(p.tokens), stream, p);
}

}  // namespace k3::ops::cuda
