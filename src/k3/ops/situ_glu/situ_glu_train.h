// Purpose:  the gated activations on a tape.
// Shapes:   gate, up, out, dout, dgate, dup [T, F], all f32 or all f64, contiguous.
// Units:    none.
// Memory:   dgate and dup are overwritten; either may be dout. gate and up must stay as they are until the backward.
// Threads:  parallel over elements inside.
// Errors:   K3_CHECK on shapes.
// Source:   training.md 5: with t1 = tanh(a/b1), s = sigmoid(a), t2 = tanh(c/b2): dh/da = ((1 - t1^2) s + b1 t1 s (1 - s)) b2 t2,
//           dh/dc = b1 t1 s (1 - t2^2). Tolerance of f32 against f64: 2e-6 of the larger factor times |dout|.
#pragma once

#include "k3/ops/situ_glu/situ_glu.h"

namespace k3::ops {

void glu_train(const Ctx& ctx, const Tensor& gate, const Tensor& up, const Glu& kind, const Tensor& out) noexcept;
void glu_vjp(const Ctx& ctx, const Tensor& gate, const Tensor& up, const Glu& kind, const Tensor& dout, const Tensor& dgate,
             const Tensor& dup) noexcept;

}  // namespace k3::ops
