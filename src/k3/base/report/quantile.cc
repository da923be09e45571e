#include "k3/base/report/quantile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "k3/base/check.h"

namespace k3 {

double quantile_of_sorted(std::span<const double> sorted, double q) {
  K3_CHECK(q >= 0 && q <= 1);
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double share = place - static_cast<double>(below);
  return sorted[below] + (sorted[above] - sorted[below]) * share;
}

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Spread out;
  out.count = static_cast<int64_t>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  out.mean = sum / static_cast<double>(values.size());  // 0 / 0 is NaN: nothing was measured
  out.min = quantile_of_sorted(values, 0);
  out.p50 = quantile_of_sorted(values, 0.5);
  out.p90 = quantile_of_sorted(values, 0.9);
  out.p95 = quantile_of_sorted(values, 0.95);
  out.p99 = quantile_of_sorted(values, 0.99);
  out.max = quantile_of_sorted(values, 1);
  return out;
}

}  // namespace k3
