// Internal to ops/cuda. A row of BF16 held by a team of threads: a warp up to 1,024 numbers wide, a block of 256 threads up to
// 8,192. For kernels of training that read a row several times and sum over rows.
#pragma once

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

constexpr int kTeamBlock = 256, kTeamGrid = 264;  // threads; blocks of kernels that sum over rows (two a multiprocessor)

template <int kThreads, int kPairs_>
struct Team {
  static constexpr int kSize = kThreads, kPairs = kPairs_, kPerBlock = kTeamBlock / kThreads;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ static int index() { return static_cast<int>(threadIdx.x) / kThreads; }
  // First number of pair i of this thread.
  __device__ static int at(int i) { return 2 * (lane() + kThreads * i); }
  __device__ static void sync() {
    if constexpr (kThreads == 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
  __device__ static float sum(float x) {
    x = warp_sum(x);
    if constexpr (kThreads > 32) {
      __shared__ float parts[8];
      __syncthreads();
      if ((threadIdx.x & 31) == 0) parts[threadIdx.x / 32] = x;
      __syncthreads();
      x = 0;
      for (float part : parts) x += part;
    }
    return x;
  }

  // Widths are even; numbers beyond the width are zero.
  __device__ static void load(const void* row, int width, float2 (&x)[kPairs]) {
    const auto* const from = static_cast<const uint32_t*>(row);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t two = at(i) < width ? from[at(i) / 2] : 0;
      x[i] = {low_bf16(two), high_bf16(two)};
    }
  }
  __device__ static void load_f32(const float* row, int width, float2 (&x)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) x[i] = at(i) < width ? *reinterpret_cast<const float2*>(row + at(i)) : float2{0, 0};
  }
  __device__ static void store(void* row, int width, const float2 (&x)[kPairs]) {
    auto* const to = static_cast<uint32_t*>(row);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (at(i) < width) to[at(i) / 2] = pack_bf16(x[i].x, x[i].y);
    }
  }
  __device__ static float dot(const float2 (&x)[kPairs], const float2 (&y)[kPairs]) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) total += x[i].x * y[i].x + x[i].y * y[i].y;
    return sum(total);
  }

  // Sums of the block's teams to partial [grid, width], each in a fixed order.
  __device__ static void put_partial(const float2 (&x)[kPairs], int width, float* partial) {
    __shared__ float2 rows[kTeamBlock];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      __syncthreads();
      rows[threadIdx.x] = x[i];
      __syncthreads();
      if (index() != 0 || at(i) >= width) continue;
      float2 total = rows[lane()];
      for (int t = 1; t < kPerBlock; ++t) total.x += rows[lane() + t * kThreads].x, total.y += rows[lane() + t * kThreads].y;
      *reinterpret_cast<float2*>(partial + static_cast<int64_t>(blockIdx.x) * width + at(i)) = total;
    }
  }
};

// f(Team<...>()) for a width; nonzero (cudaErrorInvalidValue) for widths no team takes.
template <class F>
int with_team(int64_t width, const F& f) {
  if (width % 2 != 0 || width > 8192 || width <= 0) return static_cast<int>(cudaErrorInvalidValue);
  if (width <= 128) return f(Team<32, 2>());
  if (width <= 256) return f(Team<32, 4>());
  if (width <= 384) return f(Team<32, 6>());
  if (width <= 512) return f(Team<32, 8>());
  if (width <= 1024) return f(Team<32, 16>());
  if (width <= 4096) return f(Team<256, 8>());
  return f(Team<256, 16>());
}

// Grid of a kernel that strides over rows.
template <class T>
dim3 team_grid(int64_t rows) {
  const int64_t blocks = (rows + T::kPerBlock - 1) / T::kPerBlock;
  return dim3(static_cast<unsigned>(blocks < kTeamGrid ? (blocks > 0 ? blocks : 1) : kTeamGrid));
}

}  // namespace k3::ops::cuda
