// Purpose:  y = x W^T, the matrix product of every bias-free linear layer.
// Shapes:   x [T, I] f32 (rows may be strided); w [O, I] in any scheme; y [T, O] f32 (rows may be strided).
// Units:    none.
// Memory:   y is overwritten; x and y must not overlap; scratch from the workspace.
// Threads:  parallel over output rows inside; results do not depend on the thread count.
// Errors:   K3_CHECK on shapes. T = 0 is legal.
// Source:   model.md 3. Policy bf16 rounds x to BF16 (nearest even) before the product, unless
//           full_precision; accumulation is FP32 in both policies. Tolerance against linear_ref (double):
//           |y - ref| <= 2e-6 * sum_i |x_i w_i|, the bound
//           of FP32 rounding for 16-lane partial sums; BF16 dots and tiles accumulate in FP32 too.
//           In bf16 on avx512bf16 weights under 2^-123 in MXFP4 count as zero (dots.h).
//           With Ctx::int8_activations products of i8 and mxfp4 weights are those of int8_dots.h, with its tolerance.
//           In deterministic (and in exact) each y[t, o] is one fixed-order sum over i whatever T is.
#pragma once

#include <span>

#include "k3/ops/ctx.h"
#include "k3/ops/situ_glu/situ_glu.h"
#include "k3/ops/weight.h"

namespace k3::ops {

struct LinearOptions {
  bool full_precision = false;  // never round x (router logits)
  bool accumulate = false;      // y += x W^T
  // BF16 x alone: as x, or none. What rounding cut off x; it is met where that costs nothing (one token, gemm_cuda.h).
  Tensor x_rest = {};
};

// Several weights that meet one input: their rows form one stream, x is prepared once, one parallel region.
struct LinearPart {
  Weight w;
  Tensor y;
  bool full_precision = false;
  bool accumulate = false;
  // With `up`: y = glu(x w^T, x up^T), the first half of an MLP.
  Weight up = {};
  const Glu* glu = nullptr;
};
void linear_many(const Ctx& ctx, const Tensor& x, std::span<const LinearPart> parts) noexcept;
// The same behind a site: x is site.out, which is written, too. A site without a prefix: x is there.
struct AttnResSite;
void linear_many(const Ctx& ctx, const AttnResSite& site, std::span<const LinearPart> parts) noexcept;

void linear(const Ctx& ctx, const Tensor& x, const Weight& w, const Tensor& y, LinearOptions options = {}) noexcept;
// One of two products of equal shapes with different inputs, which a GPU computes in one launch (ops/cuda/dispatch.h).
struct LinearOne {
  Tensor x;
  Weight w;
  Tensor y;
};
void linear_ref(const Tensor& x, const Weight& w, const Tensor& y, bool round_x_to_bf16) noexcept;

// y[t, :] = sum_o x[t, o] * w[o, :] (the transposed product, for absorbing key rows into a query).
// x [T, O], y [T, I]. Never rounds x. Fixed order over o. Scheme f32, bf16 or f16.
void linear_transposed(const Ctx& ctx, const Tensor& x, const Weight& w, const Tensor& y) noexcept;
void linear_transposed_ref(const Tensor& x, const Weight& w, const Tensor& y) noexcept;

}  // namespace k3::ops
