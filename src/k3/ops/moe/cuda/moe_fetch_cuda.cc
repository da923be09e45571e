#include "k3/ops/moe/cuda/moe_fetch_cuda.h"

#include "k3/base/check.h"

namespace k3::ops::cuda {

CudaStatus moe_fetch_cuda(const MoeFetch& f, Stream stream) {
  K3_CHECK(f.tokens >= 0 && f.topk >= 1 && f.experts >= 1 && f.experts <= kMoeMaxExperts && f.slots >= 0 && f.slots <= f.experts,
           "moe_fetch_cuda: {} tokens, top {}, {} experts, {} slots", f.tokens, f.topk, f.experts, f.slots);
  K3_CHECK(f.slot != nullptr && f.slot == f.places.slot && f.score != nullptr && f.counts != nullptr && f.list != nullptr &&
               (f.slots == 0 || f.owner != nullptr) && f.places.host != nullptr && f.places.expert_bytes % 16 == 0,
           "moe_fetch_cuda: a missing table");
  if (f.tokens == 0) return {};
  return {moe_fetch_launch(f, stream)};
}

}  // namespace k3::ops::cuda
