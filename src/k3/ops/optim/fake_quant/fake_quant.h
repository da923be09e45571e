// Purpose:  quantisation-aware training of routed experts: what a weight becomes when it is stored as MXFP4, and an activation when
//           it is sent as MXFP8.
// Shapes:   in, out [rows, cols], f32 or bf16 each, rows may be strided; cols a multiple of 32: blocks of 32 along the columns, the
//           input dimension of a weight and the features of an activation.
// Units:    none.
// Memory:   out is overwritten; it may be in when the dtypes agree. On a GPU both are device memory.
// Threads:  parallel over rows inside.
// Errors:   K3_CHECK on shapes and dtypes. A block with a NaN, an infinity or (MXFP4) a number beyond 6 * 2^125 comes out as
//           NaN, all of it: such a model cannot be exported, and the loss shows it.
// Source:   training.md 8. Backward: straight through, the gradient of out is the gradient of in; there is nothing to compute.
//           MXFP4: mxfp4_quantise and mxfp4_dequantise themselves (ops/mxfp4), so values are those that a server reads from an
//           export, to the bit; round-up scale, ties to the lower code. MXFP8: E4M3, scale 2^e with the smallest e for which
//           amax <= 448 * 2^e (found in integers), at least -127; nearest even. Both are bit for bit their ref on every
//           backend, and idempotent in values. BF16 holds every result exactly, but for MXFP8 values below 2^-126.
#pragma once

#include <cstdint>

#include "k3/ops/ctx.h"

namespace k3::ops {

void mxfp4_fake_quant(const Ctx& ctx, const Tensor& in, const Tensor& out) noexcept;
void mxfp8_fake_quant(const Ctx& ctx, const Tensor& in, const Tensor& out) noexcept;

// Contiguous [rows, cols]; numbers are rounded to FP32 first, as the export does.
void mxfp4_fake_quant_ref(const double* in, int64_t rows, int64_t cols, double* out) noexcept;
void mxfp8_fake_quant_ref(const double* in, int64_t rows, int64_t cols, double* out) noexcept;

}  // namespace k3::ops
