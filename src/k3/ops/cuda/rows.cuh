// Internal to ops/cuda. Kernels over the vectors of eight numbers of strided rows: an Op loads what one vector needs and
// stores it.
#pragma once

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"

namespace k3::ops::cuda {

template <class T>  // vectors: 16 bytes of BF16, 32 of FP32
__device__ __forceinline__ T* element(const void* p, int64_t stride, uint32_t row, uint32_t vector) {
  return static_cast<T*>(const_cast<void*>(p)) + stride * row + 8 * vector;
}
__device__ __forceinline__ uint4 load_bf16(const void* p, int64_t stride, uint32_t row, uint32_t vector) {
  return *reinterpret_cast<const uint4*>(element<__nv_bfloat16>(p, stride, row, vector));
}
__device__ __forceinline__ void store_bf16(const void* p, int64_t stride, uint32_t row, uint32_t vector, const uint4& x) {
  *reinterpret_cast<uint4*>(element<__nv_bfloat16>(p, stride, row, vector)) = x;
}

template <int kUnroll, class Op>
__global__ void __launch_bounds__(256) rows_kernel(const __grid_constant__ Op op, uint32_t vectors, uint32_t total) {
  dependent_begin();
  const uint32_t first = blockIdx.x * 256 * kUnroll + threadIdx.x;
  typename Op::In in[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t i = first + u * 256;
    if (i < total) in[u] = op.load(i / vectors, i % vectors);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t i = first + u * 256;
    if (i < total) op.store(i / vectors, i % vectors, in[u]);
  }
}

// rows * width / kWidth < 2^32.
template <int kWidth = 8, class Op>
int launch_rows(const Op& op, int64_t rows, int64_t width, bool dependent, void* stream) {
  const auto vectors = static_cast<uint32_t>(width / kWidth), total = static_cast<uint32_t>(rows * vectors);
  const bool many = total > 256 * 1024;
  const uint32_t step = many ? 1024 : 256;
  LaunchOptions options{.grid = dim3((total + step - 1) / step), .block = dim3(256)};
  options.dependent = dependent;
  return launch(many ? rows_kernel<4, Op> : rows_kernel<1, Op>, options, static_cast<cudaStream_t>(stream), op, vectors,
                total);
}

}  // namespace k3::ops::cuda
