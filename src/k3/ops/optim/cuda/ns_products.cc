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

// A batched product of dense column-major matrices, D = alpha op(A) B + beta C. What the library calls a column is a row of ours: X is
// [c x r] there. op(A) is [m x k], B [k x n].
bool make(LtProduct& product, const CublasLt* lt, bool transpose_a, int64_t m, int64_t n, int64_t k, int64_t units) {
  const auto layout = [&](int64_t rows, int64_t cols) { return lt_layout(*lt, CUDA_R_16BF, rows, cols, rows, units); };
  product.lt = lt;
  product.desc = lt_desc(*lt, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N);
  product.a = layout(transpose_a ? k : m, transpose_a ? m : k);
  product.b = layout(k, n);
  product.d = layout(m, n);
  return product.choose({kNsWorkspace});
}

struct Plan {
  LtProduct gram, square, apply;
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
    if (lt.ok() && make(plan->gram, *lt, true, r, r, c, units) && make(plan->square, *lt, true, r, r, r, units) &&
        make(plan->apply, *lt, false, c, r, r, units)) {
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
  const bool ran = plan->gram.run(1, s.x, s.x, 0, s.a, s.a, s.workspace, stream) == CUBLAS_STATUS_SUCCESS &&
                   plan->square.run(s.c3, s.a, s.a, s.c2, s.a, s.b, s.workspace, stream) == CUBLAS_STATUS_SUCCESS &&
                   plan->apply.run(1, s.x, s.b, s.c1, s.x, s.y, s.workspace, stream) == CUBLAS_STATUS_SUCCESS;
  return {ran ? cudaSuccess : cudaErrorLaunchFailure};
}

}  // namespace k3::ops::cuda
