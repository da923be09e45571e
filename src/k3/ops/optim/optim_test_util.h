// Internal to ops/optim. Helpers of its tests: doubles beside floats, poisoned tails.
#pragma once

#include <span>
#include <vector>

#include "k3/ops/test_util.h"
#include "k3/tensor/dtype.h"

namespace k3::ops {

inline std::vector<double> to_doubles(std::span<const float> x) { return {x.begin(), x.end()}; }

// ||x - ref|| / ||ref||; NaN when anything is NaN.
template <class A, class B>
double ratio_of(const std::vector<A>& x, const std::vector<B>& ref) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < ref.size(); ++i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(ref[i]);
    error += d * d;
    norm += static_cast<double>(ref[i]) * static_cast<double>(ref[i]);
  }
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}

}  // namespace k3::ops
