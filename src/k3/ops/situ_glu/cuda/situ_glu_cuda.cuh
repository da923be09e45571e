// Internal to ops. The gated activations of one pair of numbers on the GPU, for kernels that fuse them.
#pragma once

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

constexpr float kGluLog2E = 1.44269504F;

__device__ __forceinline__ float sigmoid_fast(float x) { return rcp_approx(1 + exp2_approx(-kGluLog2E * x)); }

// tanh |x| = top / bottom by e = e^(-2|x|); near 0 by its series, where 1 - e would cancel. Relative error below 1e-6.
__device__ __forceinline__ void tanh_fraction(float x, float e, float& top, float& bottom) {
  const float square = x * x;
  const float series = fmaf(square, fmaf(square, fmaf(square, -17.0F / 315, 2.0F / 15), -1.0F / 3), 1);
  const bool small = square < 0.0225F;
  top = small ? fabsf(x) * series : 1 - e;
  bottom = small ? 1 : 1 + e;
}

__device__ __forceinline__ float silu_glu(float gate, float up) { return gate * sigmoid_fast(gate) * up; }

struct SituBetas {
  float scale, inverse, linear_inverse;  // beta (times linear beta), 1 / beta, 1 / linear beta
};
inline SituBetas situ_betas(float beta, float linear_beta) {
  return {linear_beta > 0 ? beta * linear_beta : beta, 1 / beta, linear_beta > 0 ? 1 / linear_beta : 0};
}
// kFour: beta is 4, so that e^(-|gate|) is a square. kLinear: with a linear beta; else up passes through. One quotient: tops
// and bottoms of the tanhs and of the sigmoid are multiplied first.
template <bool kFour, bool kLinear>
__device__ __forceinline__ float situ_glu(float gate, float up, const SituBetas& b) {
  const float a = gate * b.inverse, e = exp2_approx(-2 * kGluLog2E * fabsf(a));
  const float whole = kFour ? e * e : exp2_approx(-kGluLog2E * fabsf(gate));  // e^(-|gate|)
  float top, bottom;
  tanh_fraction(a, e, top, bottom);
  top *= (gate >= 0 ? b.scale : b.scale * whole);
  bottom = fmaf(bottom, whole, bottom);
  if constexpr (kLinear) {
    const float u = up * b.linear_inverse;
    float linear_top, linear_bottom;
    tanh_fraction(u, exp2_approx(-2 * kGluLog2E * fabsf(u)), linear_top, linear_bottom);
    top *= linear_top;
    bottom *= linear_bottom;  // at most 8
  } else {
    top *= fabsf(up);
  }
  const float out = top * rcp_approx(bottom);
  return __uint_as_float(__float_as_uint(out) ^ ((__float_as_uint(gate) ^ __float_as_uint(up)) & 0x80000000U));
}

}  // namespace k3::ops::cuda
