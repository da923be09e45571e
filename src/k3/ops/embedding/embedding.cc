#include "k3/ops/embedding/embedding.h"

#include "k3/base/check.h"
#include "k3/ops/cuda/dispatch.h"

namespace k3::ops {
namespace {

DType dtype_of(Scheme scheme) {
  switch (scheme) {
    case Scheme::bf16: return DType::bf16;
    case Scheme::f16: return DType::f16;
    case Scheme::f32:
    case Scheme::mxfp4:
    case Scheme::i8:
    case Scheme::f64: break;
  }
  return DType::f32;
}

}  // namespace

void embedding(const Ctx& ctx, const Weight& table, std::span<const int32_t> ids, const Tensor& out) noexcept {
  if (ctx.training) return embedding_train(ctx, table, ids, out);
  if (ctx.device.is_cuda()) return cuda::embedding(ctx, table, out);
  K3_CHECK(table && !scheme_has_scales(table.scheme), "embedding: the table must be f32, bf16 or f16");
  K3_CHECK(
      out.rank == 2 && out.dtype == DType::f32 && out.dim(0) == static_cast<int64_t>(ids.size()) && out.dim(1) == table.cols,
      "embedding: out {} for {} ids of width {}", out.shape_text(), ids.size(), table.cols);
  for (size_t t = 0; t < ids.size(); ++t) {
    K3_CHECK(ids[t] >= 0 && ids[t] < table.rows, "embedding: id {} of {}", ids[t], table.rows);
    const void* row = weight_rows(table, ids[t], ids[t] + 1).data;
    convert_to_float(row, dtype_of(table.scheme), table.cols, out.row(static_cast<int64_t>(t)));
  }
}

}  // namespace k3::ops
