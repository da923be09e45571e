// Experts on GPUs that are not Hopper: a warp an output, its columns over the lanes.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/moe/cuda/moe_plain.h"

namespace k3::ops::cuda {
namespace {

constexpr int kWarps = 8;

__device__ __forceinline__ float fp4(uint32_t code) {  // E2M1
  const int exponent = static_cast<int>(code >> 1 & 3U), mantissa = static_cast<int>(code & 1U);
  const float magnitude = exponent == 0 ? 0.5F * static_cast<float>(mantissa)
                                        : (1.0F + 0.5F * static_cast<float>(mantissa)) * static_cast<float>(1 << (exponent - 1));
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

// Row `row` of an expert's half of the bank, times x; the same on all lanes.
__device__ float dot(MoeWeights kind, const uint8_t* half, int64_t codes, int64_t row, int cols, const __nv_bfloat16* x) {
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x) % 32; c < cols; c += 32) {
    const int64_t at = row * cols + c;
    const float w = kind == MoeWeights::bf16 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(half)[at])
                                             : ldexpf(fp4(half[at / 2] >> (4 * (at & 1)) & 15U), half[codes + at / 32] - 127);
    sum = fmaf(w, __bfloat162float(x[c]), sum);
  }
  return warp_sum(sum);
}

__device__ float activation(const MoeGlu& kind, float gate, float up) {
  const float sigmoid = 1 / (1 + expf(-gate));
  if (!kind.situ) return gate * sigmoid * up;
  if (kind.linear_beta != 0) up = kind.linear_beta * tanhf(up / kind.linear_beta);
  return kind.beta * tanhf(gate / kind.beta) * sigmoid * up;
}

__device__ int expert_of(const MoePlain& p, int slot) {
  const int e = p.ids[slot] - p.first_expert;
  return e >= 0 && e < p.weights.experts ? e : -1;
}

__global__ void __launch_bounds__(32 * kWarps) gate_up(const MoePlain p) {
  const MoeExpertsCuda& w = p.weights;
  const int slot = static_cast<int>(blockIdx.x), f = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int e = expert_of(p, slot);
  if (f >= w.hidden || e < 0) return;
  const auto* half = static_cast<const uint8_t*>(w.w13) + e * moe_plain_bytes(w.kind, int64_t{2} * w.hidden, w.width);
  const int64_t codes = moe_plain_codes(w.kind, int64_t{2} * w.hidden, w.width);
  const auto* x = static_cast<const __nv_bfloat16*>(p.z) + static_cast<int64_t>(slot / p.topk) * w.width;
  const float gate = dot(w.kind, half, codes, f, w.width, x), up = dot(w.kind, half, codes, f + w.hidden, w.width, x);
  if (threadIdx.x % 32 == 0) static_cast<__nv_bfloat16*>(p.hidden)[static_cast<int64_t>(slot) * w.hidden + f] = __float2bfloat16(activation(p.glu, gate, up));
}

__global__ void __launch_bounds__(32 * kWarps) down(const MoePlain p) {
  const MoeExpertsCuda& w = p.weights;
  const int token = static_cast<int>(blockIdx.x), r = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (r >= w.width) return;
  const int64_t codes = moe_plain_codes(w.kind, w.width, w.hidden);
  float sum = 0;
  for (int j = 0; j < p.topk; ++j) {
    const int slot = token * p.topk + j, e = expert_of(p, slot);
    if (e < 0) continue;
    const auto* half = static_cast<const uint8_t*>(w.w2) + e * moe_plain_bytes(w.kind, w.width, w.hidden);
    const auto* h = static_cast<const __nv_bfloat16*>(p.hidden) + static_cast<int64_t>(slot) * w.hidden;
    sum += p.gates[slot] * dot(w.kind, half, codes, r, w.hidden, h);
  }
  if (threadIdx.x % 32 == 0) static_cast<__nv_bfloat16*>(p.out)[static_cast<int64_t>(token) * w.width + r] = __float2bfloat16(sum);
}

}  // namespace

int moe_plain_launch(const MoePlain& p, CUstream_st* stream) {
  const auto blocks = [](int rows) { return static_cast<unsigned>((rows + kWarps - 1) / kWarps); };
  const int code = launch(gate_up, {.grid = dim3(static_cast<unsigned>(p.tokens * p.topk), blocks(p.weights.hidden)), .block = dim3(32 * kWarps)}, stream, p);
  if (code != 0) return code;
  return launch(down, {.grid = dim3(static_cast<unsigned>(p.tokens), blocks(p.weights.width)), .block = dim3(32 * kWarps)}, stream, p);
}

}  // namespace k3::ops::cuda
