// Oracle of linear: one weight at a time, double accumulation.
#include <bit>

#include "k3/base/check.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/gemm/weight_value.h"

namespace k3::ops {

void linear_ref(const Tensor& x, const Weight& w, const Tensor& y, bool round_x_to_bf16) noexcept {
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t o = 0; o < w.rows; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < w.cols; ++i) {
        const float value = round_x_to_bf16 ? round_to_bf16(x.row(t)[i]) : x.row(t)[i];
        sum += static_cast<double>(value) * static_cast<double>(weight_value(w, o, i));
      }
      y.row(t)[o] = static_cast<float>(sum);
    }
  }
}

void linear_transposed_ref(const Tensor& x, const Weight& w, const Tensor& y) noexcept {
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t i = 0; i < w.cols; ++i) {
      double sum = 0;
      for (int64_t o = 0; o < w.rows; ++o) {
        sum += static_cast<double>(x.row(t)[o]) * static_cast<double>(weight_value(w, o, i));
      }
      y.row(t)[i] = static_cast<float>(sum);
    }
  }
}

}  // namespace k3::ops
