// A site on GPUs that are not Hopper: a block a token; rows are read again for each use.
#include <cuda_bf16.h>

#include "k3/ops/attn_res/cuda/attn_res_args.h"
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kMostSources = 1025;

__device__ __forceinline__ float load(const void* p, int64_t i) { return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]); }

// Of all threads, in a fixed order; every thread gets it.
__device__ float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  __syncthreads();  // the sum before was read
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += scratch[w];
  return sum;
}

__global__ void __launch_bounds__(kThreads) site_plain(const __grid_constant__ AttnResSite s) {
  __shared__ float scratch[kWarps], weights[kMostSources];
  const auto token = static_cast<int64_t>(blockIdx.x);
  const int hidden = static_cast<int>(s.hidden), thread = static_cast<int>(threadIdx.x);
  const bool has_prefix = s.prefix != nullptr || s.delta != nullptr;
  const int sources = s.blocks + (has_prefix ? 1 : 0);
  // Element i of the sum, rounded, and of what that cuts off.
  const auto sum_at = [&](int i, __nv_bfloat16& high, __nv_bfloat16& low) {
    const float prefix = s.prefix != nullptr ? load(s.prefix, token * s.prefix_stride + i) : 0,
                rest = s.rest != nullptr ? load(s.rest, token * s.rest_stride + i) : 0,
                sum = s.delta != nullptr ? (prefix + rest) + load(s.delta, token * s.delta_stride + i) : prefix;
    high = __float2bfloat16(sum);
    low = __float2bfloat16(s.delta == nullptr ? rest : s.rest_out != nullptr ? sum - __bfloat162float(high) : 0);
  };
  // Of a source; the last one is the sum.
  const auto at = [&](int source, int i) {
    if (source < s.blocks) return load(s.bank, source * s.bank_block_stride + token * s.bank_stride + i);
    __nv_bfloat16 high, low;
    sum_at(i, high, low);
    return __bfloat162float(high) + __bfloat162float(low);
  };
  float most = -INFINITY;
  for (int j = 0; j < sources; ++j) {
    float dot = 0, squares = 0;
    for (int i = thread; i < hidden; i += kThreads) {
      const float x = at(j, i);
      dot = fmaf(x, s.query[i], dot);
      squares = fmaf(x, x, squares);
    }
    dot = block_sum(dot, scratch);
    squares = block_sum(squares, scratch);
    float score = dot * rsqrtf(squares / static_cast<float>(hidden) + s.eps);
    // An inter-block part comes with the score and the mass of what it sums up.
    if (s.inter_max != nullptr && j < s.blocks) score = s.inter_max[token];
    if (thread == 0) weights[j] = score;
    most = fmaxf(most, score);
  }
  __syncthreads();
  float mass = 0;
  for (int j = 0; j < sources; ++j) {
    const bool inter = s.inter_max != nullptr && j < s.blocks;
    mass += expf(weights[j] - most) * (inter ? s.inter_sum[token] : 1.0F);
  }
  const auto mixed = [&](int i) {
    float sum = 0;
    for (int j = 0; j < sources; ++j) sum = fmaf(expf(weights[j] - most), at(j, i), sum);
    return sum / mass;
  };
  float scale = 1;
  if (s.norm != nullptr) {
    float squares = 0;
    for (int i = thread; i < hidden; i += kThreads) {
      const float x = mixed(i);
      squares = fmaf(x, x, squares);
    }
    scale = rsqrtf(block_sum(squares, scratch) / static_cast<float>(hidden) + s.norm_eps);
  }
  for (int i = thread; i < hidden; i += kThreads) {
    const float norm = s.norm == nullptr ? 1 : s.norm_bf16 ? load(s.norm, i) : static_cast<const float*>(s.norm)[i];
    const float value = mixed(i) * scale * norm;
    const __nv_bfloat16 out = __float2bfloat16(value);
    if (has_prefix) {  // after its last use: prefix_out may be prefix
      __nv_bfloat16 sum, low;
      sum_at(i, sum, low);
      if (s.prefix_out != nullptr) static_cast<__nv_bfloat16*>(s.prefix_out)[token * s.prefix_out_stride + i] = sum;
      if (s.rest_out != nullptr) static_cast<__nv_bfloat16*>(s.rest_out)[token * s.rest_stride + i] = low;
      if (s.bank_out != nullptr) static_cast<__nv_bfloat16*>(s.bank_out)[token * s.bank_out_stride + i] = sum;
    }
    static_cast<__nv_bfloat16*>(s.out)[token * s.out_stride + i] = out;
    if (s.out_rest != nullptr) {
      static_cast<__nv_bfloat16*>(s.out_rest)[token * s.out_stride + i] = __float2bfloat16(value - __bfloat162float(out));
    }
  }
}

}  // namespace

int attn_res_plain_launch(const AttnResSite& site, void* stream) {
  return launch(site_plain, {.grid = dim3(static_cast<unsigned>(site.tokens)), .block = dim3(kThreads)}, static_cast<cudaStream_t>(stream), site);
}

}  // namespace k3::ops::cuda
