#include <cmath>

#include "k3/ops/optim/adamw/adamw.h"

namespace k3::ops {

void adamw_ref(std::span<const AdamwTensor<double>> tensors, const AdamwOptions& options, const double* scale) noexcept {
  K3_CHECK(options.step >= 1, "adamw: step {}", options.step);
  if (scale != nullptr && std::isnan(*scale)) return;
  const auto steps = static_cast<double>(options.step);
  const double c1 = 1 - std::pow(options.beta1, steps), c2 = 1 - std::pow(options.beta2, steps);
  for (const AdamwTensor<double>& t : tensors) {
    for (int64_t i = 0; i < t.count; ++i) {
      const double g = scale == nullptr ? t.grad[i] : t.grad[i] * *scale;
      t.first[i] += (1 - options.beta1) * (g - t.first[i]);
      t.second[i] = options.beta2 * t.second[i] + (1 - options.beta2) * g * g;
      const double root = std::sqrt(t.second[i]) / std::sqrt(c2) + options.eps;
      t.weight[i] = t.weight[i] * (1 - t.lr * t.decay) - t.lr / c1 * (t.first[i] / root);
      if (t.bf16 != nullptr) t.bf16[i] = float_to_bf16(static_cast<float>(t.weight[i]));
    }
  }
}

}  // namespace k3::ops
