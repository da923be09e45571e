#include "k3/plan/calibrate/fit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace k3::plan {
namespace {


// A step that reads bytes at a share of a rate and pays a latency: both constants matter in different points.
double step(std::span<const double> c, size_t point) {
  const double bytes[] = {1e9, 4e9, 16e9, 64e9};
  return bytes[point] / (1e12 * c[0]) + 100 * c[1];
}
const std::vector<FitConstant> kConstants = {{0.8, 0.01, 1}, {2e-6, 0, 1}};

std::vector<FitPoint> measured(double share, double latency) {
  std::vector<FitPoint> points;
  const double truth[] = {share, latency};
  for (size_t i = 0; i < 4; ++i) points.push_back({step(truth, i), 0});
  return points;
}

TEST(Fit, LeavesConstantsThatAreRight) {
  const std::vector<double> fitted = fit_constants(kConstants, measured(0.8, 2e-6), step);
  EXPECT_NEAR(fitted[0], 0.8, 1e-6);
  EXPECT_NEAR(fitted[1], 2e-6, 1e-11);
}

TEST(Fit, FindsBothConstants) {
  const std::vector<double> fitted = fit_constants(kConstants, measured(0.4, 6e-6), step);
  // The prior pulls a little, most at the latency: it is a fifth of one point and less of the others.
  EXPECT_NEAR(fitted[0], 0.4, 0.4 * 0.02);
  EXPECT_NEAR(fitted[1], 6e-6, 6e-6 * 0.1);
}

TEST(Fit, OnePointMovesWhatItDependsOn) {
  // The last point is nearly all bytes: the latency stays where it was.
  const std::vector<FitPoint> points = measured(0.4, 6e-6);
  const Predict last = [](std::span<const double> c, size_t) { return step(c, 3); };
  const std::vector<double> fitted = fit_constants(kConstants, std::vector<FitPoint>{points[3]}, last);
  EXPECT_NEAR(fitted[0], 0.4, 0.02);
  EXPECT_NEAR(fitted[1], 2e-6, 1e-7);
}

TEST(Fit, NoisyPointsMoveLess) {
  std::vector<FitPoint> points = measured(0.4, 2e-6);
  for (FitPoint& p : points) p.spread = 2;
  const std::vector<double> fitted = fit_constants(kConstants, points, step);
  EXPECT_GT(fitted[0], 0.5);
  EXPECT_LT(fitted[0], 0.8);
}

TEST(Fit, ShareOfAPeakStaysBelowOne) {
  const std::vector<double> fitted = fit_constants(kConstants, measured(3.0, 0.0), step);
  EXPECT_LE(fitted[0], 1.0);
  EXPECT_GE(fitted[1], 0.0);
  EXPECT_TRUE(std::isfinite(fitted[0]) && std::isfinite(fitted[1]));
}

TEST(Fit, LeavesOutWhatItIsTold) {
  std::vector<FitPoint> points = measured(0.8, 2e-6);
  points[1].measured *= 5;
  const std::vector<double> with = fit_constants(kConstants, points, step);
  const std::vector<double> without = fit_constants(kConstants, points, step, {1, points.size()});
  EXPECT_NEAR(without[0], 0.8, 1e-6);
  EXPECT_GT(std::abs(with[0] - 0.8) + std::abs(with[1] - 2e-6) * 1e5, 0.05);
}

}  // namespace
}  // namespace k3::plan
