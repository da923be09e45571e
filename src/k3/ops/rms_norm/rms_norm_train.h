// Purpose:  RMSNorm on a tape.
// Shapes:   x, out, dout, dx [T, N] contiguous, weight, dweight [N]; all f32 or all f64.
// Units:    eps is added to the mean of squares.
// Memory:   rms_norm_vjp: dx is overwritten, or added to when `accumulate`; it may be dout. dweight is added to, or empty.
//           On a tape out may be x: a copy of x is kept then; otherwise x must stay as it is.
// Threads:  parallel over tokens inside; sums over tokens in a fixed order.
// Errors:   K3_CHECK on shapes.
// Source:   with r = rsqrt(mean x^2 + eps), n = r x: dx = r (w dout - n mean(n w dout)), dw = sum_t n dout. Tolerance of f32
//           against f64: 1e-5 of the norm (sums of N terms in FP32).
#pragma once

#include "k3/ops/rms_norm/rms_norm.h"

namespace k3::ops {

void rms_norm_train(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept;
// Without a tape: f32 or f64.
void rms_norm_forward(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept;
void rms_norm_vjp(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& dout, const Tensor& dx, bool accumulate,
                  const Tensor& dweight) noexcept;

}  // namespace k3::ops
