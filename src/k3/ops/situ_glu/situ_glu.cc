#include "k3/ops/situ_glu/situ_glu.h"

#include <cmath>

#include "k3/base/check.h"
#include "k3/ops/cpu/vec_portable.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/situ_glu/situ_glu_kernel.h"

namespace k3::ops {

void glu_row_portable(const float* gate, const float* up, int64_t count, const GluArgs& kind, float* out) noexcept {
  glu_loop<VecPortable>(gate, up, count, kind, out);
}

void glu_row(Isa isa, const float* gate, const float* up, int64_t count, const Glu& kind, float* out) noexcept {
  // b tanh(x / b) does not change with the sign of b; the kernels want it positive.
  const GluArgs args{kind.kind == GluKind::situ, std::abs(kind.beta), std::abs(kind.linear_beta.value_or(0.0F))};
  if (isa >= Isa::avx512) return glu_row_avx512(gate, up, count, args, out);
  if (isa == Isa::avx2) return glu_row_avx2(gate, up, count, args, out);
  glu_row_portable(gate, up, count, args, out);
}

void glu(const Ctx& ctx, const Tensor& gate, const Tensor& up, const Glu& kind, const Tensor& out) noexcept {
  if (ctx.device.is_cuda()) return cuda::glu(ctx, gate, up, kind, out);
  constexpr int64_t kSerialElements = 1 << 13;  // about 3 us, the cost of waking a thread
  for (const Tensor* t : {&gate, &up, &out}) {
    K3_CHECK(t->rank == 2 && t->dtype == DType::f32 && t->dims == gate.dims, "glu: {} beside gate {}", t->shape_text(),
             gate.shape_text());
  }
  K3_CHECK(kind.kind == GluKind::silu || (kind.beta != 0.0F && kind.linear_beta.value_or(1.0F) != 0.0F), "glu: beta 0");
  // Parts of rows, so that one long row uses all threads as well.
  constexpr int64_t kPart = 1024;
  const int64_t width = gate.dim(1), parts = (width + kPart - 1) / kPart;
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / parts, column = i % parts * kPart, count = std::min(kPart, width - column);
      glu_row(ctx.isa, gate.row(t) + column, up.row(t) + column, count, kind, out.row(t) + column);
    }
  };
  if (gate.size() <= kSerialElements) return body(0, gate.dim(0) * parts);
  ctx.pool->parallel_for(gate.dim(0) * parts, 1, body);
}

}  // namespace k3::ops
