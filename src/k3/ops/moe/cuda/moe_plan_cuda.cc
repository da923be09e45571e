#include "k3/ops/moe/cuda/moe_plan_cuda.h"

#include "k3/base/check.h"

namespace k3::ops::cuda {

CudaStatus moe_plan_cuda(const MoePlanCuda& p, Stream stream) {
  K3_CHECK(p.tokens >= 0 && p.topk >= 1 && p.tile_rows >= 1, "moe_plan_cuda: {} tokens, top {}, tiles of {}", p.tokens,
           p.topk, p.tile_rows);
  K3_CHECK(p.experts >= 1 && p.experts <= kMoeMaxExperts, "moe_plan_cuda: {} experts", p.experts);
  K3_CHECK(p.offsets != nullptr && (p.tokens == 0 || p.ids != nullptr), "moe_plan_cuda: no ids or offsets");
  K3_CHECK(static_cast<int64_t>(p.tokens) * p.topk < int64_t{1} << 31, "moe_plan_cuda: {} tokens, top {}", p.tokens, p.topk);
  K3_CHECK(p.workspace != nullptr || moe_plan_workspace_bytes(p.tokens, p.experts) == 0, "moe_plan_cuda: no workspace");
  return {moe_plan_launch(p, stream)};
}

}  // namespace k3::ops::cuda
