// Purpose:  linear layers on a tape: y = x W^T, remembered for dx = dy W and dW = dy^T x.
// Shapes:   those of linear.h; weights f32 (f64 in double precision; on a GPU bf16 with FP32 gradients).
// Units:    none.
// Memory:   x must stay as it is until the backward; so must y where an activation follows.
// Threads:  those of matmul.h.
// Errors:   K3_CHECK on shapes.
// Source:   training.md; tolerance that of matmul.h.
#pragma once

#include "k3/ops/gemm/linear.h"

namespace k3::ops {

void linear_many_train(const Ctx& ctx, const Tensor& x, std::span<const LinearPart> parts) noexcept;

// dx is added to the tape's gradient of x, dW to that of w; `dy` [T, O].
void linear_vjp(const Ctx& ctx, Tape& tape, const Tensor& x, const Weight& w, const Tensor& dy) noexcept;

// The matrix of a weight that is stored in one of the dtypes of training.
Tensor weight_matrix(const Weight& w);

}  // namespace k3::ops
