// Softmax, loss and gradient of a chunk's logits: a block a token.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/cuda/train_rows.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Largest exponent and sum of 2^(x - top) of the block.
struct Softmax {
  float top = -INFINITY, sum = 0;
  __device__ void add(float x) {
    if (x <= top) {
      sum += exp2f(x - top);
    } else {
      sum = sum * exp2f(top - x) + 1;
      top = x;
    }
  }
  __device__ void merge(float other_top, float other_sum) {
    const float most = fmaxf(top, other_top);
    if (most == -INFINITY) return;
    sum = sum * exp2f(top - most) + other_sum * exp2f(other_top - most);
    top = most;
  }
};

__device__ Softmax of_block(Softmax mine) {
  __shared__ float tops[kThreads / 32], sums[kThreads / 32];
#pragma unroll
  for (int i = 16; i > 0; i >>= 1) {
    const float top = __shfl_xor_sync(0xFFFFFFFFU, mine.top, i), sum = __shfl_xor_sync(0xFFFFFFFFU, mine.sum, i);
    mine.merge(top, sum);
  }
  if ((threadIdx.x & 31) == 0) tops[threadIdx.x / 32] = mine.top, sums[threadIdx.x / 32] = mine.sum;
  __syncthreads();
  Softmax all;
  for (int w = 0; w < kThreads / 32; ++w) all.merge(tops[w], sums[w]);
  return all;
}

constexpr float kLog2E = 1.4426950408889634F;

template <bool kFours>
__global__ void __launch_bounds__(kThreads) loss_rows(const LossRows a) {
  const int64_t t = blockIdx.x, vocab = a.vocab;
  const float* const row = a.logits + t * vocab;
  auto* const grads = a.grads == nullptr ? nullptr : static_cast<__nv_bfloat16*>(a.grads) + t * vocab;
  const int32_t target = a.targets[t];
  if (target < 0 || target >= vocab) {
    if (threadIdx.x == 0) a.losses[t] = 0;
    for (int64_t i = threadIdx.x; grads != nullptr && i < vocab; i += kThreads) grads[i] = __float2bfloat16(0);
    return;
  }
  Softmax mine;
  if constexpr (kFours) {
    for (int64_t i = threadIdx.x; i < vocab / 4; i += kThreads) {
      const float4 x = reinterpret_cast<const float4*>(row)[i];
      mine.add(x.x * kLog2E), mine.add(x.y * kLog2E), mine.add(x.z * kLog2E), mine.add(x.w * kLog2E);
    }
  } else {
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) mine.add(row[i] * kLog2E);
  }
  const Softmax all = of_block(mine);
  if (threadIdx.x == 0) a.losses[t] = (all.top + log2f(all.sum)) / kLog2E - row[target];
  if (grads == nullptr) return;
  const float factor = a.scale / all.sum;
  const auto slope = [&](float x, int64_t i) { return exp2f(x * kLog2E - all.top) * factor - (i == target ? a.scale : 0.0F); };
  if constexpr (kFours) {
    for (int64_t i = threadIdx.x; i < vocab / 4; i += kThreads) {
      const float4 x = reinterpret_cast<const float4*>(row)[i];
      reinterpret_cast<uint2*>(grads)[i] = {pack_bf16(slope(x.x, 4 * i), slope(x.y, 4 * i + 1)), pack_bf16(slope(x.z, 4 * i + 2), slope(x.w, 4 * i + 3))};
    }
  } else {
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) grads[i] = __float2bfloat16(slope(row[i], i));
  }
}

__global__ void __launch_bounds__(1024) loss_sum(const float* losses, int64_t tokens, double* total) {
  __shared__ double parts[1024];
  double sum = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += 1024) sum += static_cast<double>(losses[t]);
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 512; half > 0; half >>= 1) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *total += parts[0];
}

}  // namespace

int loss_rows_launch(const LossRows& a, void* stream) {
  if (a.tokens == 0) return 0;
  const LaunchOptions options{.grid = dim3(static_cast<unsigned>(a.tokens)), .block = dim3(kThreads)};
  auto* const on = static_cast<cudaStream_t>(stream);
  return a.vocab % 4 == 0 ? launch(loss_rows<true>, options, on, a) : launch(loss_rows<false>, options, on, a);
}

int loss_sum_launch(const float* losses, int64_t tokens, double* total, void* stream) {
  return launch(loss_sum, {.grid = dim3(1), .block = dim3(1024)}, static_cast<cudaStream_t>(stream), losses, tokens, total);
}

}  // namespace k3::ops::cuda
