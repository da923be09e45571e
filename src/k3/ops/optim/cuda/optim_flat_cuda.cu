// Kernels over flat lists: AdamW, the gradient's norm, QK-clip.
#include <cuda_bf16.h>

#include <limits>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/optim/cuda/optim_args.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 256;

// The tensor that a block works on: the last whose first block is not behind it.
__device__ int owner(const int32_t* first_block, int count) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (static_cast<int>(blockIdx.x) >= first_block[middle] ? low : high) = middle;
  }
  return low;
}

__device__ __forceinline__ float adamw_number(const AdamwLaunch& a, const AdamwOne& t, float scale, float w, float g, float& m, float& v) {
  g *= scale;
  m = fmaf(g - m, a.one_minus_beta1, m);
  v = fmaf(g * a.one_minus_beta2, g, v * a.beta2);
  return fmaf(-t.step, __fdiv_rn(m, __fsqrt_rn(v * a.second_scale) + a.eps), w * t.keep);
}

__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ AdamwLaunch a) {
  const float scale = a.scale == nullptr ? 1.0F : *a.scale;
  if (isnan(scale)) return;
  const int index = owner(a.first_block, a.count);
  const AdamwOne& t = a.tensors[index];
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) - a.first_block[index]) * kAdamwBlock;
  const int64_t end = begin + kAdamwBlock < t.count ? begin + kAdamwBlock : t.count;
  const auto bits = reinterpret_cast<uintptr_t>(t.weight) | reinterpret_cast<uintptr_t>(t.first) | reinterpret_cast<uintptr_t>(t.second) |
                    reinterpret_cast<uintptr_t>(t.grad) | (reinterpret_cast<uintptr_t>(t.bf16) << 1);
  int64_t i = begin + 4 * threadIdx.x;
  if ((bits & 15) == 0) {
    for (; i + 4 <= end; i += 4 * kThreads) {
      float4 w = *reinterpret_cast<float4*>(t.weight + i), m = *reinterpret_cast<float4*>(t.first + i);
      float4 v = *reinterpret_cast<float4*>(t.second + i);
      const float4 g = *reinterpret_cast<const float4*>(t.grad + i);
      w.x = adamw_number(a, t, scale, w.x, g.x, m.x, v.x);
      w.y = adamw_number(a, t, scale, w.y, g.y, m.y, v.y);
      w.z = adamw_number(a, t, scale, w.z, g.z, m.z, v.z);
      w.w = adamw_number(a, t, scale, w.w, g.w, m.w, v.w);
      *reinterpret_cast<float4*>(t.weight + i) = w;
      *reinterpret_cast<float4*>(t.first + i) = m;
      *reinterpret_cast<float4*>(t.second + i) = v;
      if (t.bf16 != nullptr) {
        const __nv_bfloat162 low = __floats2bfloat162_rn(w.x, w.y), high = __floats2bfloat162_rn(w.z, w.w);
        *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(t.bf16) + i) = {*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high)};
      }
    }
  }
  for (; i < end; i += 4 * kThreads) {  // unaligned tensors, and the last numbers of others
    for (int64_t j = i; j < i + 4 && j < end; ++j) {
      const float w = adamw_number(a, t, scale, t.weight[j], t.grad[j], t.first[j], t.second[j]);
      t.weight[j] = w;
      if (t.bf16 != nullptr) static_cast<__nv_bfloat16*>(t.bf16)[j] = __float2bfloat16(w);
    }
  }
}

// Sum over the block in a fixed order; in thread 0.
__device__ double block_sum(double x) {
  __shared__ double parts[32];
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x += __shfl_down_sync(0xFFFFFFFFU, x, i);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  x = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x += __shfl_down_sync(0xFFFFFFFFU, x, i);
  return x;
}

__global__ void __launch_bounds__(kThreads) grad_sums_kernel(const __grid_constant__ GradLaunch a) {
  const int index = owner(a.first_block, a.count);
  const GradOne& t = a.tensors[index];
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) - a.first_block[index]) * kGradBlock;
  const int64_t end = begin + kGradBlock < t.count ? begin + kGradBlock : t.count;
  double sum = 0;
  int64_t i = begin + 4 * threadIdx.x;
  if ((reinterpret_cast<uintptr_t>(t.data) & 15) == 0) {
#pragma unroll 4
    for (; i + 4 <= end; i += 4 * kThreads) {
      const float4 x = *reinterpret_cast<const float4*>(t.data + i);
      const double p = x.x, q = x.y, r = x.z, s = x.w;
      sum += (p * p + q * q) + (r * r + s * s);
    }
  }
  for (; i < end; i += 4 * kThreads) {
    for (int64_t j = i; j < i + 4 && j < end; ++j) {
      const double p = t.data[j];
      sum += p * p;
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    a.sums[blockIdx.x] = sum;
    a.owners[blockIdx.x] = a.numbers[index];
  }
}

__global__ void __launch_bounds__(1024) grad_total_kernel(const double* sums, const int32_t* owners, int64_t blocks, double max_norm, GradResult* out) {
  __shared__ int32_t bad;
  if (threadIdx.x == 0) bad = INT32_MAX;
  __syncthreads();
  double sum = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += blockDim.x) {
    if (!isfinite(sums[i])) atomicMin(&bad, owners[i]);
    sum += sums[i];
  }
  __syncthreads();
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  const bool fine = bad == INT32_MAX;
  const double nan = __longlong_as_double(0x7FF8000000000000LL), norm = fine ? sqrt(sum) : nan;
  out->norm = norm;
  out->scale = static_cast<float>(fine ? fmin(1.0, max_norm / (norm + 1e-6)) : nan);
  out->bad_tensor = fine ? -1 : bad;
}

__device__ void scale_rows(float* x, void* bf16, int64_t begin, int64_t count, float factor) {
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; i < count; i += step) {
    const float y = x[begin + i] * factor;
    x[begin + i] = y;
    if (bf16 != nullptr) static_cast<__nv_bfloat16*>(bf16)[begin + i] = __float2bfloat16(y);
  }
}

__global__ void __launch_bounds__(kThreads) qk_clip_kernel(const __grid_constant__ QkClipLaunch a) {
  const auto h = static_cast<int64_t>(blockIdx.x);
  const auto logit = static_cast<double>(a.max_logits[h]);
  const double gamma = logit > a.tau ? a.tau / logit : 1;  // NaN: 1
  if (a.gamma != nullptr && blockIdx.y == 0 && threadIdx.x == 0) a.gamma[h] = static_cast<float>(gamma);
  if (gamma == 1) return;
  const auto root = static_cast<float>(sqrt(gamma));
  const int64_t q = h * (a.nope + a.rope) * a.q_cols;
  scale_rows(a.q, a.q_bf16, q, a.nope * a.q_cols, root);
  scale_rows(a.q, a.q_bf16, q + a.nope * a.q_cols, a.rope * a.q_cols, static_cast<float>(gamma));
  scale_rows(a.kv, a.kv_bf16, h * (a.nope + a.value) * a.kv_cols, a.nope * a.kv_cols, root);
}

}  // namespace

int adamw_launch(const AdamwLaunch& a, void* stream) {
  adamw_kernel<<<static_cast<unsigned>(a.first_block[a.count]), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a);
  return launch_code();
}

int grad_sums_launch(const GradLaunch& a, void* stream) {
  grad_sums_kernel<<<static_cast<unsigned>(a.first_block[a.count]), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a);
  return launch_code();
}

int grad_total_launch(const double* sums, const int32_t* owners, int64_t blocks, double max_norm, GradResult* out, void* stream) {
  grad_total_kernel<<<1, 1024, 0, static_cast<cudaStream_t>(stream)>>>(sums, owners, blocks, max_norm, out);
  return launch_code();
}

int qk_clip_launch(const QkClipLaunch& a, void* stream) {
  qk_clip_kernel<<<dim3(static_cast<unsigned>(a.heads), 8), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a);
  return launch_code();
}

}  // namespace k3::ops::cuda
