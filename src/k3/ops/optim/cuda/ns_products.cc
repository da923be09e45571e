#include "k3/ops/optim/cuda/ns_products.h"

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "k3/base/check.h"
#include "k3/ops/cuda/cublas_lt.h"
#include "k3/ops/optim/cuda/optim_args.h"

namespace k3::ops::cuda {
namespace {

// A batched product of dense column-major matrices, D = alpha op(A) B + beta C with C and D alike. What the library calls a column is
// a row of ours: X is [c x r] there.
struct Product {
  const CublasLt* lt = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algo{};

  Product() = default;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    for (cublasLtMatrixLayout_t layout : {a, b, d}) {
      if (layout != nullptr) lt->layout_destroy(layout);
    }
    if (desc != nullptr) lt->desc_destroy(desc);
  }

  bool layout(cublasLtMatrixLayout_t* out, int64_t rows, int64_t cols, int64_t units) const {
    const auto batch = static_cast<int32_t>(units);
    const int64_t offset = rows * cols;
    return lt->layout_create(out, CUDA_R_16BF, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), rows) == CUBLAS_STATUS_SUCCESS &&
           lt->layout_set(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch) == CUBLAS_STATUS_SUCCESS &&
           lt->layout_set(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset, sizeof offset) == CUBLAS_STATUS_SUCCESS;
  }

  bool choose() {
    cublasLtMatmulPreference_t preference = nullptr;
    if (lt->preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return false;
    // Partial sums, where there are any, are FP32 in the workspace: repeatable.
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const size_t bytes = kNsWorkspace;
    lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    lt->preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status = lt->heuristic(lt->handle, desc, a, b, d, d, preference, 1, &found, &count);
    lt->preference_destroy(preference);
    algo = found.algo;
    return status == CUBLAS_STATUS_SUCCESS && count == 1;
  }

  // op(A) is [m x k], B [k x n].
  bool make(const CublasLt* library, bool transpose_a, int64_t m, int64_t n, int64_t k, int64_t units) {
    lt = library;
    const cublasOperation_t op = transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    return lt->desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           lt->desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op) == CUBLAS_STATUS_SUCCESS &&
           layout(&a, transpose_a ? k : m, transpose_a ? m : k, units) && layout(&b, k, n, units) && layout(&d, m, n, units) && choose();
  }

  bool run(float alpha, const void* left, const void* right, float beta, const void* old, void* out, void* workspace, Stream stream) const {
    return lt->matmul(lt->handle, desc, &alpha, left, a, right, b, &beta, old, d, out, d, &algo, workspace, kNsWorkspace, stream) ==
           CUBLAS_STATUS_SUCCESS;
  }
};

struct Plan {
  Product gram, square, apply;
};

// Null: the library is not there, or does not take the shape.
const Plan* plan_of(int64_t units, int64_t r, int64_t c) {
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, int64_t, int64_t>, std::unique_ptr<Plan>> plans;
  const std::scoped_lock lock(mutex);
  const auto [at, fresh] = plans.try_emplace({units, r, c});
  if (fresh) {
    const Result<const CublasLt*> lt = cublas_lt();
    auto plan = std::make_unique<Plan>();
    if (lt.ok() && plan->gram.make(*lt, true, r, r, c, units) && plan->square.make(*lt, true, r, r, r, units) &&
        plan->apply.make(*lt, false, c, r, r, units)) {
      at->second = std::move(plan);
    }
  }
  return at->second.get();
}

CudaStatus plain_step(const NsStep& s, Stream stream) {
  NsProductLaunch p;
  p.units = static_cast<int32_t>(s.units);
  const auto r = static_cast<int32_t>(s.r), c = static_cast<int32_t>(s.c);
  // A = X X^T
  p.left = s.x, p.left_row = c, p.left_col = 1, p.left_unit = s.r * s.c;
  p.right = s.x, p.right_row = 1, p.right_col = c, p.right_unit = s.r * s.c;
  p.out = s.a, p.out_row = r, p.out_unit = s.r * s.r, p.rows = r, p.cols = r, p.depth = c;
  p.old = nullptr, p.alpha = 1, p.beta = 0;
  if (const int code = ns_product_launch(p, stream); code != 0) return {code};
  // B = c2 A + c3 A A
  p.left = p.right = p.old = s.a, p.left_row = p.right_row = r, p.left_col = p.right_col = 1, p.left_unit = p.right_unit = s.r * s.r;
  p.out = s.b, p.depth = r, p.alpha = s.c3, p.beta = s.c2;
  if (const int code = ns_product_launch(p, stream); code != 0) return {code};
  // Y = c1 X + B X
  p.left = s.b;
  p.right = p.old = s.x, p.right_row = c, p.right_col = 1, p.right_unit = s.r * s.c;
  p.out = s.y, p.out_row = c, p.out_unit = s.r * s.c, p.cols = c, p.alpha = 1, p.beta = s.c1;
  return {ns_product_launch(p, stream)};
}

}  // namespace

CudaStatus ns_step_cuda(const NsStep& s, Stream stream) {
  if (s.units == 0) return {};
  K3_CHECK(s.r > 0 && s.r <= s.c && s.r % 8 == 0 && s.c % 8 == 0 && s.units <= 65535, "newton_schulz: {} units of [{}, {}]", s.units, s.r,
           s.c);
  const Plan* plan = s.plain ? nullptr : plan_of(s.units, s.r, s.c);
  if (plan == nullptr) return plain_step(s, stream);
  // B and A are symmetric, so it does not matter that the library sees their transposes.
  const bool ran = plan->gram.run(1, s.x, s.x, 0, s.a, s.a, s.workspace, stream) &&
                   plan->square.run(s.c3, s.a, s.a, s.c2, s.a, s.b, s.workspace, stream) &&
                   plan->apply.run(1, s.x, s.b, s.c1, s.x, s.y, s.workspace, stream);
  return {ran ? cudaSuccess : cudaErrorLaunchFailure};
}

}  // namespace k3::ops::cuda
