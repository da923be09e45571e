// Purpose:  the cost model held against measurements: signed errors, and the band that covers them.
// Shapes:   one row for each measurement.
// Units:    those of the measurement's quantity; errors are relative, (model - measured) / measured.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   invalid_argument naming the measurement whose layout the model cannot have.
// Source:   cost-model.md 12, 13a. Scored are measurements whose inputs were published and on which nothing was fitted. A
// band
//           is of measured time over predicted time (for rates: predicted over measured), so that it multiplies any time.
#pragma once

#include <vector>

#include "k3/plan/advise/scenario.h"
#include "k3/plan/published/measurements.h"

namespace k3::plan {

struct CheckRow {
  Measurement measurement;
  double predicted = 0, error = 0;
  double time_ratio = 1;  // measured / predicted time
};

struct ErrorSummary {
  int64_t rows = 0;
  double mean = 0, median = 0;     // of the absolute errors
  double lowest = 0, highest = 0;  // signed
  Band covers;                     // all rows
  Band most;                       // the middle 80 % of them
};

struct Check {
  std::vector<CheckRow> rows;
  ErrorSummary scored;         // inputs published, nothing fitted
  ErrorSummary out_of_sample;  // nothing fitted, with what had to be assumed
  ErrorSummary fitted;
};

// What the model says of one measurement. The machine's record gives its constants.
Result<double> predict(const Measurement& measurement, const Counts& counts);

Result<Check> check(const std::vector<Measurement>& measurements, const Counts& counts);

// Of values in any order; used where errors of one's own runs give the band.
Band covering_band(std::vector<double> time_ratios);
Band middle_band(std::vector<double> time_ratios, double share);

}  // namespace k3::plan
