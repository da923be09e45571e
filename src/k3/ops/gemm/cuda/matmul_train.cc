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

struct Product {
  const CublasLt* lt = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algo{};

  Product() = default;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    for (cublasLtMatrixLayout_t layout : {left, right, out}) {
      if (layout != nullptr) lt->layout_destroy(layout);
    }
    if (desc != nullptr) lt->desc_destroy(desc);
  }

  bool make(const CublasLt* library, const Shape& s) {
    lt = library;
    const cublasOperation_t op_left = s.flip_b ? CUBLAS_OP_T : CUBLAS_OP_N, op_right = s.flip_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const auto u = [](int64_t x) { return static_cast<uint64_t>(x); };
    return lt->desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           lt->desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_left, sizeof op_left) == CUBLAS_STATUS_SUCCESS &&
           lt->desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_right, sizeof op_right) == CUBLAS_STATUS_SUCCESS &&
           lt->layout_create(&left, CUDA_R_16BF, u(s.flip_b ? s.k : s.n), u(s.flip_b ? s.n : s.k), s.b_stride) == CUBLAS_STATUS_SUCCESS &&
           lt->layout_create(&right, CUDA_R_16BF, u(s.flip_a ? s.m : s.k), u(s.flip_a ? s.k : s.m), s.a_stride) == CUBLAS_STATUS_SUCCESS &&
           lt->layout_create(&out, s.c_f32 ? CUDA_R_32F : CUDA_R_16BF, u(s.n), u(s.m), s.c_stride) == CUBLAS_STATUS_SUCCESS && choose(s);
  }

  bool choose(const Shape& s) {
    cublasLtMatmulPreference_t preference = nullptr;
    if (lt->preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return false;
    // Partial sums, where there are any, are FP32 in the workspace and added in one order.
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const auto narrow = [](int64_t x) { return static_cast<uint32_t>(x); };
    const uint32_t aligns[] = {narrow(s.b_align), narrow(s.a_align), narrow(s.c_align), narrow(s.c_align)};
    lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes, sizeof kWorkspaceBytes);
    lt->preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &aligns[0], sizeof(uint32_t));
    lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &aligns[1], sizeof(uint32_t));
    lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &aligns[2], sizeof(uint32_t));
    lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &aligns[3], sizeof(uint32_t));
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status = lt->heuristic(lt->handle, desc, left, right, out, out, preference, 1, &found, &count);
    lt->preference_destroy(preference);
    algo = found.algo;
    return status == CUBLAS_STATUS_SUCCESS && count == 1;
  }
};

// Null: the library is not there, or does not take the shape.
const Product* product_of(const Shape& s) {
  using Key = decltype(s.key());
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<Product>> products;
  const std::scoped_lock lock(mutex);
  const auto [at, fresh] = products.try_emplace(s.key());
  if (fresh) {
    const Result<const CublasLt*> lt = cublas_lt();
    auto made = std::make_unique<Product>();
    if (lt.ok() && made->make(*lt, s)) at->second = std::move(made);
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
  const Product* const product = k > 0 ? product_of(s) : nullptr;
  if (product != nullptr) {
    const Result<void*> workspace = ctx.gpu->product_workspace(static_cast<int64_t>(kWorkspaceBytes));
    if (!workspace.ok()) return ctx.gpu->note(Status(workspace.error()));
    const float one = 1, beta = accumulate ? 1 : 0;
    const cublasStatus_t status = product->lt->matmul(product->lt->handle, product->desc, &one, b.data, product->left, a.data, product->right, &beta,
                                                      c.data, product->out, c.data, product->out, &product->algo, *workspace, kWorkspaceBytes, ctx.stream);
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
