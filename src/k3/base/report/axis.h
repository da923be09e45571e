// Scales and ticks: from values to places on an axis, and how ticks are chosen and written.
#pragma once

#include <string>
#include <vector>

#include "k3/base/report/plot.h"

namespace k3::report {

struct Tick {
  double value = 0;
  std::string text;  // empty: a line without a label
};

class Scale {
 public:
  // The values that the axis has to show; limits that the axis gives win. Never empty: 0 to 1 (log: 1 to 10) for nothing.
  Scale(const Axis& axis, const std::vector<double>& values);

  bool holds(double value) const;    // finite, and positive on a log scale
  double place(double value) const;  // 0 at the low end, 1 at the high end; beyond for values outside
  double low() const { return low_; }
  double high() const { return high_; }
  bool log() const { return log_; }

  // About `most` labelled ticks, at round values.
  std::vector<Tick> ticks(int most) const;

 private:
  std::vector<Tick> linear_ticks(int most) const;
  std::vector<Tick> log_ticks(int most) const;
  void widen();

  Unit unit_;
  bool log_;
  double low_ = 0, high_ = 1;
};

// "1.5 s", "12k", "64 GiB", "35 %"; at most three digits that count.
std::string unit_text(double value, Unit unit);

}  // namespace k3::report
