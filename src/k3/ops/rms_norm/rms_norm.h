// Purpose:  RMSNorm over the last dimension, plain and gated (KDA output norm).
// Shapes:   rms_norm: x [T, N] f32, weight [N] f32, out [T, N]; rows may be strided; out may be x.
//           gated_rms_norm: x [T, H, D] f32 contiguous, weight [D], gate [T, H * D] logits, out [T, H * D].
// Units:    eps is added to the mean of squares.
// Memory:   out is overwritten.
// Threads:  parallel over rows inside.
// Errors:   K3_CHECK on shapes. T = 0 is legal.
// Source:   model.md 3.2 (eps table), 3.3: out = x * rsqrt(mean x^2 + eps) * w [* sigmoid(gate)], FP32.
//           Tolerance against ref: 2e-6 relative (FP32 sum of squares and one exp).
#pragma once

#include "k3/ops/ctx.h"

namespace k3::ops {

void rms_norm(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept;
void rms_norm_ref(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept;

void gated_rms_norm(const Ctx& ctx, const Tensor& x, const Tensor& weight, const Tensor& gate, float eps,
                    const Tensor& out) noexcept;
void gated_rms_norm_ref(const Tensor& x, const Tensor& weight, const Tensor& gate, float eps, const Tensor& out) noexcept;

}  // namespace k3::ops
