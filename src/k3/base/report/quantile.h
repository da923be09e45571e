// Quantiles of measurements: linear between the two values around the place q * (n - 1), as NumPy and R (type 7) have it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace k3 {

// sorted: ascending; q in [0, 1]. NaN without values.
double quantile_of_sorted(std::span<const double> sorted, double q);

struct Spread {
  int64_t count = 0;
  double mean = 0, min = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;  // NaN without values
};
Spread spread_of(std::vector<double> values);

}  // namespace k3
