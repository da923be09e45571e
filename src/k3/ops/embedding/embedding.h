// Purpose:  embedding rows of token ids.
// Shapes:   table [V, hidden] in scheme f32, bf16 or f16; ids [T]; out [T, hidden] f32.
// Units:    none; no scaling factor.
// Memory:   out is overwritten.
// Threads:  serial (T rows are copied).
// Errors:   K3_CHECK on shapes and ids in range: callers validate user ids first.
// Source:   model.md 3.1. Exact.
#pragma once

#include <span>

#include "k3/ops/ctx.h"
#include "k3/ops/weight.h"

namespace k3::ops {

// On a GPU the ids are those of Ctx::step; one outside the table gives a row of zeros.
void embedding(const Ctx& ctx, const Weight& table, std::span<const int32_t> ids, const Tensor& out) noexcept;

// In training (ctx.tape may be null: only forward); table and out of one dtype, f32 or f64. dtable [V, hidden] is added to.
void embedding_train(const Ctx& ctx, const Weight& table, std::span<const int32_t> ids, const Tensor& out) noexcept;
void embedding_vjp(const Ctx& ctx, std::span<const int32_t> ids, const Tensor& dout, const Tensor& dtable) noexcept;

}  // namespace k3::ops
