// The dense products of training: cuBLASLt, its algorithm chosen once a shape (by the library, not by measurement: a run that is
// resumed computes the same bits); what it does not take goes through mma_train.h.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "k3/ops/cuda/cublas_lt.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/cuda/train_rows.h"
#include "k3/ops/gemm/cuda/mma_train.h"

namespace k3::ops::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

int64_t alignment_of(const void* p, int64_t stride_bytes) {
  const auto bits = reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(stride_bytes);
  int64_t align = 16;
  while (align > 1 && bits % static_cast<uintptr_t>(align) != 0) align /= 2;
  return align;
}

// c [m, n] row-major is a column-major [n, m] to the library, whose first operand is our second.
struct Shape {
  int64_t m, n, k;
  bool flip_a, flip_b;  // stored transposed
  int64_t a_stride, b_stride, c_stride;
  bool c_f32, accumulate;
  int64_t a_align, b_align, c_align;
  auto key() const {
    return std::make_tuple(m, n, k, flip_a, flip_b, a_stride, b_stride, c_stride, c_f32, accumulate, a_align, b_align, c_align);
  }
};

bool make(LtProduct& product, const CublasLt* lt, const Shape& s) {
  product.lt = lt;
  product.desc = lt_desc(*lt, s.flip_b ? CUBLAS_OP_T : CUBLAS_OP_N, s.flip_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  product.a = lt_layout(*lt, CUDA_R_16BF, s.flip_b ? s.k : s.n, s.flip_b ? s.n : s.k, s.b_stride);
  product.b = lt_layout(*lt, CUDA_R_16BF, s.flip_a ? s.m : s.k, s.flip_a ? s.k : s.m, s.a_stride);
  product.d = lt_layout(*lt, s.c_f32 ? CUDA_R_32F : CUDA_R_16BF, s.n, s.m, s.c_stride);
  const auto narrow = [](int64_t x) { return static_cast<uint32_t>(x); };
  return product.choose({kWorkspaceBytes, {{narrow(s.b_align), narrow(s.a_align), narrow(s.c_align), narrow(s.c_align)}}});
}

// Null: the library is not there, or does not take the shape.
const LtProduct* product_of(const Shape& s) {
  using Key = decltype(s.key());
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<LtProduct>> products;
  const std::scoped_lock lock(mutex);
  const auto [at, fresh] = products.try_emplace(s.key());
  if (fresh) {
    const Result<const CublasLt*> lt = cublas_lt();
    auto made = std::make_unique<LtProduct>();
    if (lt.ok() && make(*made, *lt, s)) at->second = std::move(made);
  }
  return at->second.get();
}

CudaStatus own_product(const Ctx& ctx, const Shape& s, const Tensor& a, const Tensor& b, const Tensor& c) {
  MmaTrain p{};
  p.operands[0] = {a.data, b.data};
  p.c[0] = c.data;
  p.a_stride = s.a_stride, p.b_stride = s.b_stride, p.c_stride = s.c_stride;
  p.m = static_cast<int32_t>(s.m), p.n = static_cast<int32_t>(s.n), p.k = static_cast<int32_t>(s.k);
  p.c_f32 = s.c_f32, p.accumulate = s.accumulate;
  p.groups = 1;
  p.b_plain = !s.flip_b;
  if (!s.flip_a) return {mma_rows_launch(p, ctx.stream)};
  K3_CHECK(!s.flip_b, "matmul: both operands transposed");
  return {mma_depth_launch(p, ctx.stream)};
}

Tensor as_bf16(const Ctx& ctx, const Tensor& x) {
  if (x.dtype == DType::bf16) return x;
  const Tensor out = ctx.workspace->tensor({x.dim(0), x.dim(1)}, DType::bf16);
  narrow(ctx, x, out);
  return out;
}

}  // namespace

void matmul(const Ctx& ctx, const Tensor& a0, Op op_a, const Tensor& b0, Op op_b, const Tensor& c, bool accumulate) noexcept {
  const bool flip_a = op_a == Op::transposed, flip_b = op_b == Op::transposed;
  const int64_t m = a0.dim(flip_a ? 1 : 0), k = a0.dim(flip_a ? 0 : 1), n = b0.dim(flip_b ? 0 : 1);
  K3_CHECK(a0.rank == 2 && b0.rank == 2 && c.rank == 2 && b0.dim(flip_b ? 1 : 0) == k && c.dim(0) == m && c.dim(1) == n &&
               (c.dtype == DType::bf16 || c.dtype == DType::f32),
           "matmul: {}{} times {}{} to {}", a0.shape_text(), flip_a ? " transposed" : "", b0.shape_text(), flip_b ? " transposed" : "",
           c.shape_text());
  if (m == 0 || n == 0) return;
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor a = as_bf16(ctx, a0), b = as_bf16(ctx, b0);
  Shape s{m, n, k, flip_a, flip_b, a.stride(0), b.stride(0), c.stride(0), c.dtype == DType::f32, accumulate, 0, 0, 0};
  s.a_align = alignment_of(a.data, s.a_stride * 2);
  s.b_align = alignment_of(b.data, s.b_stride * 2);
  s.c_align = alignment_of(c.data, s.c_stride * dtype_bytes(c.dtype));
  const LtProduct* const product = k > 0 ? product_of(s) : nullptr;
  if (product != nullptr) {
    const Result<void*> workspace = ctx.gpu->product_workspace(static_cast<int64_t>(kWorkspaceBytes));
    if (!workspace.ok()) return ctx.gpu->note(Status(workspace.error()));
    const cublasStatus_t status =
        product->run(1, b.data, a.data, accumulate ? 1.0F : 0.0F, c.data, c.data, *workspace, ctx.stream);
    return ctx.gpu->note(CudaStatus{status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorLaunchFailure}, "matmul");
  }
  ctx.gpu->note(own_product(ctx, s, a, b, c), "matmul, own");
}

void narrow(const Ctx& ctx, const Tensor& from, const Tensor& to) noexcept {
  K3_CHECK(from.contiguous() && to.contiguous() && from.size() == to.size() && from.dtype == DType::f32 && to.dtype == DType::bf16, "narrow {} to {}",
           from.shape_text(), to.shape_text());
  if (from.size() > 0) ctx.gpu->note(CudaStatus{narrow_launch(from.f32(), to.data, from.size(), ctx.stream)}, "narrow");
}

}  // namespace k3::ops::cuda
