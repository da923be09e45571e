// Oracle of the norms in double.
#include <cmath>

#include "k3/ops/rms_norm/rms_norm.h"

namespace k3::ops {
namespace {

double inverse_root(const float* x, int64_t n, double eps) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return 1.0 / std::sqrt(sum / static_cast<double>(n) + eps);
}

}  // namespace

void rms_norm_ref(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept {
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const double factor = inverse_root(x.row(t), x.dim(1), static_cast<double>(eps));
    for (int64_t i = 0; i < x.dim(1); ++i) {
      out.row(t)[i] = static_cast<float>(static_cast<double>(x.row(t)[i]) * factor * static_cast<double>(weight.f32()[i]));
    }
  }
}

void gated_rms_norm_ref(const Tensor& x, const Tensor& weight, const Tensor& gate, float eps, const Tensor& out) noexcept {
  const int64_t heads = x.dim(1), width = x.dim(2);
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* row = x.row(t) + h * width;
      const double factor = inverse_root(row, width, static_cast<double>(eps));
      for (int64_t i = 0; i < width; ++i) {
        const double g = static_cast<double>(gate.row(t)[h * width + i]);
        const double value = static_cast<double>(row[i]) * factor * static_cast<double>(weight.f32()[i]);
        out.row(t)[h * width + i] = static_cast<float>(value / (1.0 + std::exp(-g)));
      }
    }
  }
}

}  // namespace k3::ops
