// Purpose:  the dense product of training: c = op(a) op(b), or added to c, where op may transpose.
// Shapes:   op(a) [M, K], op(b) [K, N], c [M, N]; all f32 or all f64; rows may be strided.
// Units:    none.
// Memory:   c is overwritten or added to; it overlaps neither input. Packed operands come from the workspace.
// Threads:  parallel over tiles of c inside; a tile is one fixed-order sum whatever the thread count.
// Errors:   K3_CHECK on shapes. Empty dimensions are legal; K = 0 gives zeros.
// Source:   y = x W^T and its gradients dx = dy W, dW = dy^T x (training.md). f64 is the obvious sum and the reference. Tolerance
//           of f32 against it: |c - ref| <= (K + 1) 2^-24 sum_k |a b|, the bound of a chain of K roundings.
#pragma once

#include "k3/ops/ctx.h"

namespace k3::ops {

enum class Op { plain, transposed };

void matmul(const Ctx& ctx, const Tensor& a, Op op_a, const Tensor& b, Op op_b, const Tensor& c, bool accumulate = false) noexcept;

// The same inside a parallel region, by one thread; `room` has matmul_room_bytes(), aligned to 64.
int64_t matmul_room_bytes(Isa isa) noexcept;
void matmul_one(Isa isa, const Tensor& a, Op op_a, const Tensor& b, Op op_b, const Tensor& c, bool accumulate, void* room) noexcept;

}  // namespace k3::ops
