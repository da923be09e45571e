// Internal to ops. The gated activations of one pair of numbers on the GPU, for kernels that fuse them.
#pragma once

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

constexpr float kGluLog2E = 1.44269504F;

// tanh by e^(-2|x|); near 0 by its series, where 1 - e would cancel. Relative error below 1e-6.
__device__ __forceinline__ float tanh_fast(float x) {
  const float t = exp2_approx(-2 * kGluLog2E * fabsf(x)), square = x * x;
  const float large = copysignf(__fdividef(1 - t, 1 + t), x);
  const float small = x * fmaf(square, fmaf(square, fmaf(square, -17.0F / 315, 2.0F / 15), -1.0F / 3), 1);
  return fabsf(x) < 0.15F ? small : large;
}
// The exponent is capped: __fdividef returns 0 for divisors beyond 2^126.
__device__ __forceinline__ float sigmoid_fast(float x) { return __fdividef(1, 1 + exp2_approx(fminf(-kGluLog2E * x, 126.0F))); }

__device__ __forceinline__ float silu_glu(float gate, float up) { return gate * sigmoid_fast(gate) * up; }
// inverse betas are 1 / beta; linear_beta 0: up passes through.
__device__ __forceinline__ float situ_glu(float gate, float up, float beta, float inverse, float linear_beta, float linear_inverse) {
  const float u = linear_beta > 0 ? linear_beta * tanh_fast(up * linear_inverse) : up;
  return beta * tanh_fast(gate * inverse) * sigmoid_fast(gate) * u;
}

}  // namespace k3::ops::cuda
