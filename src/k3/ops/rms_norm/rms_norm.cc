#include "k3/ops/rms_norm/rms_norm.h"

#include "k3/base/check.h"
#include "k3/ops/cpu/vec_portable.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/rms_norm/rms_norm_kernel.h"
#include "k3/ops/rms_norm/rms_norm_train.h"

namespace k3::ops {

void norm_row_portable(const float* x, const float* weight, const float* gate, float eps, int64_t n, float* out) noexcept {
  norm_row<VecPortable>(x, weight, gate, eps, n, out);
}

NormRowFn norm_row_fn(Isa isa) {
  if (isa >= Isa::avx512) return norm_row_avx512;
  return isa == Isa::avx2 ? norm_row_avx2 : norm_row_portable;
}

namespace {

// Rows of fewer elements in all are not worth waking a thread.
constexpr int64_t kSerialElements = 1 << 14;

template <class Body>
void for_rows(const Ctx& ctx, int64_t rows, int64_t elements, const Body& body) {
  if (rows * elements <= kSerialElements) return body(0, rows);
  ctx.pool->parallel_for(rows, 1, body);
}

}  // namespace

void rms_norm(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept {
  if (ctx.training) return rms_norm_train(ctx, x, weight, eps, out);
  if (ctx.device.is_cuda()) return cuda::rms_norm(ctx, x, weight, eps, out);
  K3_CHECK(x.rank == 2 && out.rank == 2 && x.dims == out.dims && weight.rank == 1 && weight.dim(0) == x.dim(1),
           "rms_norm: x {}, weight {}, out {}", x.shape_text(), weight.shape_text(), out.shape_text());
  K3_CHECK(x.dtype == DType::f32 && weight.dtype == DType::f32 && out.dtype == DType::f32);
  const NormRowFn row = norm_row_fn(ctx.isa);
  for_rows(ctx, x.dim(0), x.dim(1), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) row(x.row(t), weight.f32(), nullptr, eps, x.dim(1), out.row(t));
  });
}

void gated_rms_norm(const Ctx& ctx, const Tensor& x, const Tensor& weight, const Tensor& gate, float eps,
                    const Tensor& out) noexcept {
  K3_CHECK(x.rank == 3 && x.contiguous() && weight.rank == 1 && weight.dim(0) == x.dim(2), "gated_rms_norm: x {}, weight {}",
           x.shape_text(), weight.shape_text());
  const int64_t tokens = x.dim(0), heads = x.dim(1), width = x.dim(2);
  for (const Tensor* t : {&gate, &out}) {
    K3_CHECK(t->rank == 2 && t->dim(0) == tokens && t->dim(1) == heads * width, "gated_rms_norm: {} for x {}",
             t->shape_text(), x.shape_text());
  }
  K3_CHECK(x.dtype == DType::f32 && weight.dtype == DType::f32 && gate.dtype == DType::f32 && out.dtype == DType::f32);
  const NormRowFn row = norm_row_fn(ctx.isa);
  for_rows(ctx, tokens * heads, width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / heads, column = i % heads * width;
      row(x.f32() + i * width, weight.f32(), gate.row(t) + column, eps, width, out.row(t) + column);
    }
  });
}

}  // namespace k3::ops
