// Purpose:  the oneDNN backend of linear: BF16 x BF16 -> FP32 products on matrix units.
// Shapes:   as linear; w of scheme bf16.
// Units:    none.
// Memory:   y is overwritten; the BF16 copy of x comes from the workspace.
// Threads:  oneDNN runs single threaded inside each worker of ctx.pool, on that worker's output rows: two thread
//           runtimes never compete. Primitives are cached per thread and shape.
// Errors:   K3_CHECK on a failure inside oneDNN. Without oneDNN linear_onednn_wins() is always false.
// Source:   accumulates in FP32; the order of summation is oneDNN's, so never for exact or deterministic.
#pragma once

#include "k3/ops/ctx.h"
#include "k3/ops/weight.h"

namespace k3::ops {

bool linear_onednn_wins(Isa isa, Scheme scheme, int64_t tokens);
bool linear_onednn_built();
void linear_onednn(const Ctx& ctx, const Tensor& x, const Weight& w, const Tensor& y) noexcept;

}  // namespace k3::ops
