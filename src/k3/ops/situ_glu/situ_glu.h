// Purpose:  the gated activations of every MLP: SiTU-GLU and SwiGLU.
// Shapes:   gate, up, out [T, F] f32, rows may be strided; out may be gate or up.
// Units:    none.
// Memory:   out is overwritten.
// Threads:  parallel over rows inside; glu_row is for use inside a parallel region.
// Errors:   K3_CHECK on shapes. T = 0 is legal.
// Source:   model.md 3.5: SiTU(g, u) = b1 tanh(g/b1) sigmoid(g) * (b2 tanh(u/b2), or u without a linear beta);
//           SwiGLU(g, u) = g sigmoid(g) u. sigmoid takes the uncapped g. FP32.
//           SiTU is one quotient: tanh and sigmoid are fractions in e^{-|x|}, and tops and bottoms are multiplied first.
//           Tolerance against ref: 1e-6 relative + 1e-7 absolute (FP32 exponentials; one of them squared when b1 is 4.
//           Largest relative error of 2^20 random pairs: 5.5e-7).
#pragma once

#include <optional>

#include "k3/ops/ctx.h"

namespace k3::ops {

enum class GluKind { silu, situ };

struct Glu {
  GluKind kind = GluKind::silu;
  float beta = 1.0F;                 // situ
  std::optional<float> linear_beta;  // situ; absent: up passes through
};

void glu(const Ctx& ctx, const Tensor& gate, const Tensor& up, const Glu& kind, const Tensor& out) noexcept;
void glu_ref(const Tensor& gate, const Tensor& up, const Glu& kind, const Tensor& out) noexcept;
void glu_row(Isa isa, const float* gate, const float* up, int64_t count, const Glu& kind, float* out) noexcept;

}  // namespace k3::ops
