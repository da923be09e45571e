// Purpose:  elementary functions over arrays on a chosen instruction set (for tests, and for code without own kernels).
// Shapes:   x, y [count]; y may be x.
// Units:    none.
// Memory:   y is overwritten.
// Threads:  pure functions.
// Errors:   none. An instruction set that the processor lacks must not be asked for.
// Source:   vec_math.h (accuracy).
#pragma once

#include <cstdint>

#include "k3/ops/cpu/isa.h"

namespace k3::ops {

enum class VecFn { exp, expm1, sigmoid, silu, tanh, softplus };

void vec_apply(Isa isa, VecFn fn, const float* x, int64_t count, float* y) noexcept;

void vec_apply_portable(VecFn fn, const float* x, int64_t count, float* y) noexcept;
void vec_apply_avx2(VecFn fn, const float* x, int64_t count, float* y) noexcept;
void vec_apply_avx512(VecFn fn, const float* x, int64_t count, float* y) noexcept;

}  // namespace k3::ops
