#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/gemm/cuda/gemm_cuda.h"
#include "k3/ops/gemm/linear.h"

namespace k3::ops::cuda {

void linear_many(const Ctx& ctx, const Tensor& x, std::span<const ops::LinearPart> parts) noexcept {
  K3_CHECK(x.rank == 2 && x.dtype == DType::bf16, "linear: x {} of dtype {} on a GPU", x.shape_text(), dtype_name(x.dtype));
  if (x.dim(0) == 0) return;
  GemmArgs args;
  args.x = x.data;
  args.tokens = x.dim(0);
  args.in = x.dim(1);
  args.x_stride = x.stride(0);
  args.deterministic = ctx.deterministic;
  args.dependent = true;
  // A sub-layer ends with a product of one weight. The site after it reads, before it waits, what the site before wrote; all
  // kernels between may start early, but this one lets the site start only when it has waited itself.
  args.release_late = parts.size() == 1;
  for (const ops::LinearPart& part : parts) {
    K3_CHECK(part.w.cols == x.dim(1) && part.y.dim(1) == part.w.rows && part.y.dim(0) == x.dim(0), "linear: weight {} x {}, x {}, y {}",
             part.w.rows, part.w.cols, x.shape_text(), part.y.shape_text());
    args.parts[static_cast<size_t>(args.part_count++)] = {
        .w = part.w, .y = part.y.data, .y_stride = part.y.stride(0), .y_dtype = part.y.dtype};
  }
  ctx.gpu->note(gemm_cuda(args, ctx.gpu->plans(), ctx.stream), "linear");
}

}  // namespace k3::ops::cuda
