#include "k3/ops/gemm/linear_train.h"

#include "k3/base/check.h"
#include "k3/ops/matmul/matmul.h"
#include "k3/ops/situ_glu/situ_glu_train.h"
#include "k3/ops/tape.h"

namespace k3::ops {
namespace {

void record_linear(const Ctx& ctx, const Tensor& x, const Weight& w, const Tensor& y, bool accumulate) {
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  tape->record([=](const Ctx& back) {
    const Tensor dy = tape->grad(y);
    if (!dy) return;
    linear_vjp(back, *tape, x, w, dy);
    if (!accumulate) tape->done(y);
  });
}

}  // namespace

Tensor weight_matrix(const Weight& w) {
  const bool known = w.scheme == Scheme::f32 || w.scheme == Scheme::f64 || w.scheme == Scheme::bf16;
  K3_CHECK(known, "training wants weights in f32, f64 or bf16");
  const DType dtype = w.scheme == Scheme::f32 ? DType::f32 : w.scheme == Scheme::f64 ? DType::f64 : DType::bf16;
  return Tensor(const_cast<void*>(w.data), dtype, {w.rows, w.cols});
}

void linear_vjp(const Ctx& ctx, Tape& tape, const Tensor& x, const Weight& w, const Tensor& dy) noexcept {
  const Tensor weight = weight_matrix(w);
  const Tape::Into dx = tape.into(x);
  matmul(ctx, dy, Op::plain, weight, Op::plain, dx.grad, !dx.fresh);
  const Tensor dw = tape.parameter_grad(w.data, w.rows * w.cols);
  if (dw) matmul(ctx, dy, Op::transposed, x, Op::plain, dw.reshape({w.rows, w.cols}), true);
}

void linear_many_train(const Ctx& ctx, const Tensor& x, std::span<const LinearPart> parts) noexcept {
  for (const LinearPart& part : parts) {
    if (part.up) {
      K3_CHECK(!part.accumulate, "an activation is not added to");
      const Tensor gate = ctx.workspace->tensor_like(part.y), up = ctx.workspace->tensor_like(part.y);
      matmul(ctx, x, Op::plain, weight_matrix(part.w), Op::transposed, gate);
      record_linear(ctx, x, part.w, gate, false);
      matmul(ctx, x, Op::plain, weight_matrix(part.up), Op::transposed, up);
      record_linear(ctx, x, part.up, up, false);
      glu_train(ctx, gate, up, *part.glu, part.y);
      continue;
    }
    matmul(ctx, x, Op::plain, weight_matrix(part.w), Op::transposed, part.y, part.accumulate);
    record_linear(ctx, x, part.w, part.y, part.accumulate);
  }
}

}  // namespace k3::ops
