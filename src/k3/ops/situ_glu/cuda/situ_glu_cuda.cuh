// Internal to ops. The gated activations of one pair of numbers on the GPU, for kernels that fuse them.
#pragma once

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

constexpr float kGluLog2E = 1.44269504F;

// The exponent is capped: __fdividef returns 0 for divisors beyond 2^126.
__device__ __forceinline__ float sigmoid_fast(float x) {
  return __fdividef(1, 1 + exp2_approx(fminf(-kGluLog2E * x, 126.0F)));
}

// tanh |x| = top / bottom by e^(-2|x|); near 0 by its series, where 1 - e would cancel. Relative error below 1e-6.
__device__ __forceinline__ void tanh_fraction(float x, float e, float& top, float& bottom) {
  const float square = x * x;
  const float series = fabsf(x) * fmaf(square, fmaf(square, fmaf(square, -17.0F / 315, 2.0F / 15), -1.0F / 3), 1);
  const bool small = square < 0.0225F;
  top = small ? series : 1 - e;
  bottom = small ? 1 : 1 + e;
}

__device__ __forceinline__ float silu_glu(float gate, float up) { return gate * sigmoid_fast(gate) * up; }

// What situ_glu needs of the betas; linear_beta 0: up passes through.
struct SituBetas {
  float scale, inverse, linear_inverse;  // beta (times linear beta), 1 / beta, 1 / linear beta
  bool linear, four;                     // with a linear beta; beta is 4: e^(-|g|) is a square
};
inline SituBetas situ_betas(float beta, float linear_beta) {
  return {linear_beta > 0 ? beta * linear_beta : beta, 1 / beta, linear_beta > 0 ? 1 / linear_beta : 0, linear_beta > 0,
          beta == 4};
}
// One quotient: tops and bottoms of the tanhs and of the sigmoid are multiplied first (the rate of special functions is the
// limit).
__device__ __forceinline__ float situ_glu(float gate, float up, const SituBetas& b) {
  const float a = gate * b.inverse, e = exp2_approx(-2 * kGluLog2E * fabsf(a));
  const float whole = b.four ? e * e : exp2_approx(-kGluLog2E * fabsf(gate));  // e^(-|gate|)
  float top, bottom, linear_top = fabsf(up), linear_bottom = 1;
  tanh_fraction(a, e, top, bottom);
  if (b.linear) {
    const float u = up * b.linear_inverse;
    tanh_fraction(u, exp2_approx(-2 * kGluLog2E * fabsf(u)), linear_top, linear_bottom);
  }
  top *= (gate >= 0 ? 1 : whole) * linear_top * b.scale;
  bottom *= (1 + whole) * linear_bottom;  // at most 8
  const float out = __fdividef(top, bottom);
  return __uint_as_float(__float_as_uint(out) ^ ((__float_as_uint(gate) ^ __float_as_uint(up)) & 0x80000000U));
}

}  // namespace k3::ops::cuda
