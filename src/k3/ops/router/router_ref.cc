// Oracle of the router in double, with a full stable sort.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "k3/ops/router/router.h"

namespace k3::ops {

void router_ref(const Tensor& logits, const Tensor& bias, const RouterOptions& options, const Tensor& ids,
                const Tensor& weights) noexcept {
  const int64_t experts = logits.dim(1);
  for (int64_t t = 0; t < logits.dim(0); ++t) {
    std::vector<double> score(static_cast<size_t>(experts)), biased;
    for (size_t e = 0; e < score.size(); ++e) score[e] = 1.0 / (1.0 + std::exp(-static_cast<double>(logits.row(t)[e])));
    biased = score;
    for (size_t e = 0; bias && e < score.size(); ++e) biased[e] += static_cast<double>(bias.f32()[e]);
    std::vector<int32_t> order(score.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return biased[static_cast<size_t>(a)] > biased[static_cast<size_t>(b)]; });
    double sum = 0;
    for (int64_t j = 0; j < options.topk; ++j) sum += score[static_cast<size_t>(order[static_cast<size_t>(j)])];
    for (int64_t j = 0; j < options.topk; ++j) {
      const int32_t e = order[static_cast<size_t>(j)];
      const double p = score[static_cast<size_t>(e)] / (options.renormalise ? sum + 1e-20 : 1.0);
      static_cast<int32_t*>(ids.data)[t * ids.stride(0) + j] = e;
      weights.row(t)[j] = static_cast<float>(p * static_cast<double>(options.scale));
    }
  }
}

}  // namespace k3::ops
