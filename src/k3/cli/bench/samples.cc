#include "k3/cli/bench/samples.h"

#include <algorithm>
#include <cmath>

namespace k3::cli {
namespace {

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace

double Samples::median() const { return median_of(values_); }
double Samples::min() const { return values_.empty() ? 0 : *std::min_element(values_.begin(), values_.end()); }
double Samples::max() const { return values_.empty() ? 0 : *std::max_element(values_.begin(), values_.end()); }

double Samples::mad() const {
  std::vector<double> distances;
  const double middle = median();
  for (const double value : values_) distances.push_back(std::abs(value - middle));
  return median_of(std::move(distances));
}

double Samples::spread() const {
  const double middle = median();
  return middle > 0 ? (max() - min()) / 2 / middle : 0;
}

}  // namespace k3::cli
