// Repeated measurements of one thing: the median is shown, with how far they lie apart.
#pragma once

#include <vector>

namespace k3::cli {

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  void add(const Samples& other) { values_.insert(values_.end(), other.values_.begin(), other.values_.end()); }
  bool empty() const { return values_.empty(); }
  const std::vector<double>& values() const { return values_; }

  // All 0 without samples.
  double median() const;
  double min() const;
  double max() const;
  double mad() const;     // median of the distances from the median
  double spread() const;  // half of the range, as a share of the median

 private:
  std::vector<double> values_;
};

}  // namespace k3::cli
