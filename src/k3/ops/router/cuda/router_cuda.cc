#include "k3/ops/router/cuda/router_cuda.h"

#include "k3/base/check.h"

namespace k3::ops::cuda {

CudaStatus router_cuda(const RouterCuda& a, Stream stream) {
  K3_CHECK(a.tokens >= 0 && a.experts >= 1 && a.experts <= 1024, "router_cuda: {} tokens, {} experts", a.tokens, a.experts);
  K3_CHECK(a.topk >= 1 && a.topk <= 16 && a.topk <= a.experts, "router_cuda: top {} of {}", a.topk, a.experts);
  if (a.tokens == 0) return {};
  K3_CHECK(a.logits != nullptr && a.ids != nullptr && a.weights != nullptr, "router_cuda: a missing array");
  return {plain_device() ? router_plain_launch(a, stream) : router_launch(a, stream)};
}

}  // namespace k3::ops::cuda
