// Purpose:  moves constants so that a model meets measurements: weighted least squares of logarithms, held near where they
//           began by a prior, so that few measurements move few constants.
// Shapes:   constants [n], measurements [m], any n and m from 1 on.
// Units:    constants and predictions are positive; what is fitted is the logarithm of a constant's factor.
// Memory:   plain values.
// Threads:  pure function; `predict` is called from the calling thread.
// Errors:   none: a constant that meets its limit stays there.
// Source:   Gauss-Newton with a Gaussian prior on the factors. The widths below are judgements, named here to be changed:
//           a constant is off by a factor of two as easily as not; a closed form is never better than 3 %.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace k3::plan {

inline constexpr double kPriorWidth = 0.7;       // standard deviation of ln(factor) before anything is measured
inline constexpr double kLeastDeviation = 0.03;  // of ln(measured / predicted), beside the spread of the runs

struct FitConstant {
  double value = 1, least = 0, most = 1;
};
struct FitPoint {
  double measured = 1, spread = 0;  // spread: relative
};

// Prediction of point i with these values of the constants.
using Predict = std::function<double(std::span<const double> values, size_t point)>;

// The points that a fit does not see: those i with i % groups == group.
struct LeftOut {
  size_t group = 1, groups = 1;  // none

  bool has(size_t point) const { return point % groups == group; }
};

// The values that fit, found from `start` on (empty: from the constants' own values). The fit without a point lies near the
// fit with it, so that it is the place to start from.
std::vector<double> fit_constants(std::span<const FitConstant> constants, std::span<const FitPoint> points,
                                  const Predict& predict, LeftOut left_out = {}, std::span<const double> start = {});

}  // namespace k3::plan
