// Purpose:  the element-wise steps between ops: residual add, copies, and the sigmoid output gate of MLA.
// Shapes:   all [T, N] f32 contiguous (on a GPU: the activation dtype).
// Units:    none.
// Memory:   the last argument is updated in place.
// Threads:  parallel over elements inside; every element is computed alone.
// Errors:   K3_CHECK on shapes. T = 0 is legal.
// Source:   model.md 3.1, 3.4. add is exact FP32; sigmoid_gate is within 2e-7 relative of ref (one exp).
#pragma once

#include <span>

#include "k3/ops/ctx.h"

namespace k3::ops {

// y += x
void add(const Ctx& ctx, const Tensor& x, const Tensor& y) noexcept;

// to = from
void copy(const Ctx& ctx, const Tensor& from, const Tensor& to) noexcept;

// to[r] = from[rows[r]]; on a GPU the rows are those of Ctx::step.
void gather_rows(const Ctx& ctx, const Tensor& from, std::span<const int64_t> rows, const Tensor& to) noexcept;

// y *= sigmoid(gate)
void sigmoid_gate(const Ctx& ctx, const Tensor& gate, const Tensor& y) noexcept;
void sigmoid_gate_ref(const Tensor& gate, const Tensor& y) noexcept;

}  // namespace k3::ops
