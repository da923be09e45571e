// One row a block (or one a warp when rows are short), held in registers.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/rms_norm/cuda/rms_norm_args.h"

namespace k3::ops::cuda {
namespace {

__device__ __forceinline__ uint4* vector_at(const void* p, int64_t stride, int64_t row, int64_t vector) {
  return reinterpret_cast<uint4*>(static_cast<char*>(const_cast<void*>(p)) + 2 * stride * row) + vector;
}

template <int kVectors>
__global__ void __launch_bounds__(1024) norm_rows(const __grid_constant__ RmsNorm a) {
  __shared__ float part[32];
  const int warps = blockDim.x / 32, lane = threadIdx.x & 31;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int vectors = static_cast<int>(a.width) / 8;
  dependent_begin();
  if (token >= a.tokens) return;  // rows of a warp each: nobody waits for it
  uint4 x[kVectors] = {}, delta[kVectors] = {};
#pragma unroll
  for (int c = 0; c < kVectors; ++c) {
    const int v = threadIdx.x + c * blockDim.x;
    if (v >= vectors) continue;
    x[c] = *vector_at(a.x, a.x_stride, token, v);
    if (a.delta != nullptr) delta[c] = *vector_at(a.delta, a.delta_stride, token, v);
  }
  float sum = 0;
#pragma unroll
  for (int c = 0; c < kVectors; ++c) {
    const int v = threadIdx.x + c * blockDim.x;
    if (a.delta != nullptr) x[c] = add8(x[c], delta[c]);
    if (a.sum_out != nullptr && v < vectors) *vector_at(a.sum_out, a.sum_out_stride, token, v) = x[c];
    float y[8];
    unpack8(x[c], y);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(y[i], y[i], sum);
  }
  sum = warp_sum(sum);
  if (warps > 1) {
    if (lane == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = warp_sum(lane < warps ? part[lane] : 0);
  }
  const float factor = rsqrtf(sum / static_cast<float>(a.width) + a.eps);
#pragma unroll
  for (int c = 0; c < kVectors; ++c) {
    const int v = threadIdx.x + c * blockDim.x;
    if (v >= vectors) continue;
    float y[8], w[8];
    unpack8(x[c], y);
    if (a.weight_bf16) {
      unpack8(__ldg(vector_at(a.weight, 0, 0, v)), w);
    } else {
      const float4* at = static_cast<const float4*>(a.weight) + 2 * v;
      const float4 low = __ldg(at), high = __ldg(at + 1);
      w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w, w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = y[i] * factor * w[i];
    *vector_at(a.out, a.out_stride, token, v) = pack8(y);
  }
}

}  // namespace

int rms_norm_launch(const RmsNorm& args, const RmsNormPlan& plan, void* stream) {
  LaunchOptions options{.grid = dim3(static_cast<unsigned>(plan.grid)), .block = dim3(plan.threads, plan.rows)};
  options.dependent = args.dependent;
  auto* s = static_cast<cudaStream_t>(stream);
  switch (plan.vectors) {
    case 1: return launch(norm_rows<1>, options, s, args);
    case 2: return launch(norm_rows<2>, options, s, args);
    case 4: return launch(norm_rows<4>, options, s, args);
    default: return launch(norm_rows<8>, options, s, args);
  }
}

}  // namespace k3::ops::cuda
