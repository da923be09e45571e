// Purpose:  efficiency constants moved by measured runs of one accelerator, with what each measurement did and how far the
//           model then is from those it was not shown.
// Shapes:   one row for each measured point, one factor for each constant.
// Units:    seconds; factors are of the constant's value in the record.
// Memory:   plain values.
// Threads:  pure function; one fit for each point, at most kMostLeftOut, besides the main one.
// Errors:   invalid_argument: no points; a run of another model than the one it is fitted with (by its parameters).
// Source:   fit.h; cost-model.md 8.4 (the constants).
#pragma once

#include <string>
#include <vector>

#include "k3/plan/advise/scenario.h"
#include "k3/plan/calibrate/measured_runs.h"

namespace k3::plan {

struct CalibrationFactor {
  std::string constant;  // of Efficiency
  double before = 0, after = 0;
};

struct CalibrationRow {
  MeasuredPoint point;
  double before = 0, after = 0;  // predicted seconds
  double unseen = 0;             // predicted by a fit without this point
  std::string moved;             // the constant that it moved most; empty: none by 1 %
  double moved_by = 1;           // factor on that constant that this point alone is the reason for
};

struct Calibration {
  Efficiency efficiency;
  std::vector<CalibrationFactor> factors;  // those that moved by 1 % or more
  std::vector<CalibrationRow> rows;
  // Measured over predicted, each point by the fit without it, widened by the spread of its runs; 1 lies within. Of fewer
  // than kLeastBandPoints the published band, widened so that it holds them.
  Band band;
};

inline constexpr size_t kLeastBandPoints = 3;  // without one of two points hardly anything is fitted
inline constexpr size_t kMostLeftOut = 100;    // fits without a part of the points; of more points each leaves out several
inline constexpr double kWidestBand = 1000;    // and 1 / 1000: beyond, a band says nothing more

// `published`: the band that holds without a calibration.
Result<Calibration> calibrate(const Counts& counts, const Machine& machine, const Precision& precision,
                              const std::vector<MeasuredPoint>& points, const Band& published = {});

}  // namespace k3::plan
