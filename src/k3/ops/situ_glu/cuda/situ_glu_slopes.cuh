// Internal to ops. A gated activation and its slopes.
#pragma once

#include <cuda_runtime.h>

namespace k3::ops::cuda {

struct GluKindArgs {
  bool situ;
  float beta, linear_beta;  // linear_beta 0: none
};

// 1 - 2 / (e^2x + 1), with the result's relative precision where x is small.
__device__ __forceinline__ float tanh_train(float x) {
  if (fabsf(x) < 0.25F) {
    const float s = x * x;
    return x * (1 + s * (-1.0F / 3 + s * (2.0F / 15 + s * (-17.0F / 315))));
  }
  return 1 - __fdividef(2, __expf(2 * fminf(x, 40.0F)) + 1);
}

struct GluSlopes {
  float value, gate, up;
};

__device__ __forceinline__ GluSlopes glu_slopes(float a, float c, const GluKindArgs& kind) {
  const float s = __fdividef(1, 1 + __expf(fminf(-a, 80.0F))), slope = s * (1 - s);
  if (!kind.situ) return {a * s * c, (s + a * slope) * c, a * s};
  const float t1 = kind.beta == 0 ? 0 : tanh_train(a / kind.beta), t2 = kind.linear_beta == 0 ? 0 : tanh_train(c / kind.linear_beta);
  const float left = kind.beta == 0 ? a : kind.beta * t1, right = kind.linear_beta == 0 ? c : kind.linear_beta * t2;
  return {left * s * right, ((1 - t1 * t1) * s + left * slope) * right, left * s * (1 - t2 * t2)};
}

}  // namespace k3::ops::cuda
