#include "k3/plan/calibrate/fit.h"

#include <algorithm>
#include <cmath>

namespace k3::plan {
namespace {

constexpr int kMostSteps = 40;
constexpr double kDifference = 1e-4;  // of a logarithm, for the derivatives
constexpr double kLongestStep = 0.5;  // of a logarithm: roofs have corners that a linear step may overshoot
constexpr double kSmallStep = 1e-7;

// Solves the symmetric positive definite system a x = b in place (Cholesky); the prior makes it definite.
std::vector<double> solve(std::vector<double> a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t j = 0; j < n; ++j) {
    for (size_t k = 0; k < j; ++k) {
      for (size_t i = j; i < n; ++i) a[i * n + j] -= a[i * n + k] * a[j * n + k];
    }
    const double diagonal = std::sqrt(std::max(a[j * n + j], 1e-12));
    for (size_t i = j; i < n; ++i) a[i * n + j] /= diagonal;
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) b[i] -= a[i * n + k] * b[k];
    b[i] /= a[i * n + i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[k * n + i] * b[k];
    b[i] /= a[i * n + i];
  }
  return b;
}

class Fit {
 public:
  Fit(std::span<const FitConstant> constants, std::span<const FitPoint> points, const Predict& predict, LeftOut left_out)
      : constants_(constants), points_(points), predict_(predict), left_out_(left_out) {}

  std::vector<double> run(std::span<const double> start) {
    std::vector<double> logs(constants_.size(), 0.0);
    for (size_t j = 0; j < start.size(); ++j) logs[j] = limited(j, std::log(std::max(start[j], 1e-300) / constants_[j].value));
    double cost = cost_of(logs);
    for (int step = 0; step < kMostSteps; ++step) {
      std::vector<double> change = gauss_newton(logs);
      double longest = 0;
      for (const double c : change) longest = std::max(longest, std::abs(c));
      if (longest < kSmallStep) break;
      double scale = std::min(1.0, kLongestStep / longest);
      bool better = false;
      for (int half = 0; half < 12 && !better; ++half, scale /= 2) {
        std::vector<double> next = logs;
        for (size_t j = 0; j < next.size(); ++j) next[j] = limited(j, logs[j] + scale * change[j]);
        const double next_cost = cost_of(next);
        better = next_cost < cost - 1e-12 * std::abs(cost);
        if (better) logs = std::move(next), cost = next_cost;
      }
      if (!better) break;
    }
    return values_of(logs);
  }

 private:
  double limited(size_t j, double log) const {
    const FitConstant& c = constants_[j];
    return std::clamp(log, std::log(std::max(c.least, 1e-300) / c.value), std::log(c.most / c.value));
  }
  std::vector<double> values_of(const std::vector<double>& logs) const {
    std::vector<double> values(logs.size());
    for (size_t j = 0; j < logs.size(); ++j) {
      values[j] = std::clamp(constants_[j].value * std::exp(logs[j]), constants_[j].least, constants_[j].most);
    }
    return values;
  }
  double deviation(size_t i) const { return std::hypot(kLeastDeviation, points_[i].spread); }
  double residual(const std::vector<double>& values, size_t i) const {
    return std::log(points_[i].measured / predict_(values, i)) / deviation(i);
  }
  double cost_of(const std::vector<double>& logs) const {
    const std::vector<double> values = values_of(logs);
    double sum = 0;
    for (size_t i = 0; i < points_.size(); ++i) {
      if (!left_out_.has(i)) sum += std::pow(residual(values, i), 2);
    }
    for (const double log : logs) sum += std::pow(log / kPriorWidth, 2);
    return sum;
  }
  std::vector<double> gauss_newton(const std::vector<double>& logs) const {
    const size_t n = logs.size();
    std::vector<double> matrix(n * n, 0.0), right(n, 0.0), slope(n);
    const std::vector<double> values = values_of(logs);
    for (size_t i = 0; i < points_.size(); ++i) {
      if (left_out_.has(i)) continue;
      const double here = residual(values, i);
      for (size_t j = 0; j < n; ++j) {
        std::vector<double> moved = logs;
        moved[j] -= kDifference;  // downwards: shares of a peak may be at their upper limit
        slope[j] = (here - residual(values_of(moved), i)) / kDifference;
      }
      for (size_t j = 0; j < n; ++j) {
        right[j] -= slope[j] * here;
        for (size_t k = 0; k < n; ++k) matrix[j * n + k] += slope[j] * slope[k];
      }
    }
    for (size_t j = 0; j < n; ++j) {
      matrix[j * n + j] += 1 / (kPriorWidth * kPriorWidth);
      right[j] -= logs[j] / (kPriorWidth * kPriorWidth);
    }
    return solve(std::move(matrix), std::move(right));
  }

  std::span<const FitConstant> constants_;
  std::span<const FitPoint> points_;
  const Predict& predict_;
  LeftOut left_out_;
};

}  // namespace

std::vector<double> fit_constants(std::span<const FitConstant> constants, std::span<const FitPoint> points,
                                  const Predict& predict, LeftOut left_out, std::span<const double> start) {
  return Fit(constants, points, predict, left_out).run(start);
}

}  // namespace k3::plan
