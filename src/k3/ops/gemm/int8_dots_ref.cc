// Oracle of int8_dots: quantisation by its definition, exact integers, double sums.
#include <cmath>
#include <vector>

#include "k3/ops/gemm/int8_dots.h"
#include "k3/ops/gemm/weight_value.h"

namespace k3::ops {
namespace {

double dequantised(const float* group, int64_t i) {
  float amax = 0;
  for (int64_t j = 0; j < kInt8DotGroup; ++j) amax = std::fmax(amax, std::abs(group[j]));
  if (amax < 0x1p-100F) return 0;
  const float scale = amax / 127.0F, inverse = 127.0F / amax;
  return static_cast<double>(std::nearbyint(group[i] * inverse)) * static_cast<double>(scale);
}

}  // namespace

void int8_linear_ref(const Tensor& x, const Weight& w, const Tensor& y) noexcept {
  for (int64_t t = 0; t < x.dim(0); ++t) {
    std::vector<double> values(static_cast<size_t>(w.cols));
    for (int64_t i = 0; i < w.cols; ++i) {
      values[static_cast<size_t>(i)] = dequantised(x.row(t) + i / kInt8DotGroup * kInt8DotGroup, i % kInt8DotGroup);
    }
    for (int64_t o = 0; o < w.rows; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < w.cols; ++i) {
        sum += values[static_cast<size_t>(i)] * static_cast<double>(weight_value(w, o, i));
      }
      y.row(t)[o] = static_cast<float>(sum);
    }
  }
}

}  // namespace k3::ops
