// Runs made up from the cost model with other constants: calibration has to find its way back, in both directions.
#include "k3/plan/calibrate/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "k3/plan/calibrate/fit.h"
#include "k3/plan/cost/decode.h"
#include "k3/plan/cost/prefill.h"
#include "k3/plan/hardware/shared_files.h"

namespace k3::plan {
namespace {

using testing::HasSubstr;
using Kind = MeasuredPoint::Kind;

Counts kimi_linear() {
  const Asset* const file = find_asset("/models/kimi-linear-48b.json");
  EXPECT_NE(file, nullptr);
  return table_counts(parse_config(file->bytes, "kimi-linear-48b").value()).value();
}

double seconds_of(const Deployment& d, const MeasuredPoint& point) {
  if (point.kind == Kind::decode_step) {
    DecodeBatch batch;
    batch.requests = point.users;
    batch.context_tokens = point.context;
    return decode_step(d, batch).seconds;
  }
  const std::vector<PrefillSequence> sequences(static_cast<size_t>(point.users), {static_cast<int64_t>(point.input), 0});
  return prefill_time(d, {sequences, 1}).seconds;
}

// What a machine of these constants would measure.
std::vector<MeasuredPoint> runs_of(const Counts& counts, const Machine& machine) {
  const Deployment d{counts, machine.hw, machine.efficiency, Layout{}, Precision{}};
  std::vector<MeasuredPoint> points;
  const auto add = [&](Kind kind, int64_t users, double context, double input) {
    MeasuredPoint point;
    point.name = fmt::format("run {}", points.size());
    point.kind = kind, point.users = users, point.context = context, point.input = input;
    point.seconds = seconds_of(d, point);
    points.push_back(std::move(point));
  };
  for (const int64_t users : {1, 4, 16, 64}) add(Kind::decode_step, users, 2048, 0);
  add(Kind::decode_step, 16, 65536, 0);
  for (const int64_t prompts : {1, 8}) add(Kind::prefill, prompts, 0, 4096);
  return points;
}

double error(double predicted, double measured) { return std::abs(std::log(predicted / measured)); }

void expect_finds(const Machine& truth) {
  const Counts counts = kimi_linear();
  const Machine start = load_machine("h200").value();
  const std::vector<MeasuredPoint> points = runs_of(counts, truth);
  const Calibration c = calibrate(counts, start, Precision{}, points).value();
  ASSERT_EQ(c.rows.size(), points.size());
  for (const CalibrationRow& row : c.rows) {
    // The fit counts a closed form good to kLeastDeviation; the prior may hold it off by as much.
    EXPECT_LT(error(row.after, row.point.seconds), kLeastDeviation) << row.point.name;
    EXPECT_LE(error(row.after, row.point.seconds), error(row.before, row.point.seconds)) << row.point.name;
    EXPECT_GE(row.point.seconds / row.unseen, c.band.low * (1 - 1e-12)) << row.point.name;
    EXPECT_LE(row.point.seconds / row.unseen, c.band.high * (1 + 1e-12)) << row.point.name;
  }
}

TEST(Calibrate, FindsASlowerMachine) {
  Machine slow = load_machine("h200").value();
  slow.efficiency.kernel_seconds *= 3;
  slow.efficiency.weight_bytes *= 0.6;
  slow.efficiency.gemm_flops *= 0.5;
  slow.efficiency.routed_flops *= 0.5;
  expect_finds(slow);
}

// Latencies have no lower limit but zero: a fast machine's kernels take less than the record says.
TEST(Calibrate, FindsAFasterMachine) {
  Machine fast = load_machine("h200").value();
  fast.efficiency.kernel_seconds /= 4;
  fast.efficiency.host_step_seconds /= 4;
  fast.efficiency.weight_bytes = 0.95;
  fast.efficiency.routed_flops *= 1.5;
  expect_finds(fast);
}

TEST(Calibrate, LeavesARecordThatIsRight) {
  const Counts counts = kimi_linear();
  const Machine machine = load_machine("h200").value();
  const Calibration c = calibrate(counts, machine, Precision{}, runs_of(counts, machine)).value();
  EXPECT_TRUE(c.factors.empty());
  EXPECT_NEAR(c.band.low, 1, 1e-9);
  EXPECT_NEAR(c.band.high, 1, 1e-9);
  for (const CalibrationRow& row : c.rows) EXPECT_EQ(row.moved, "") << row.point.name;
}

TEST(Calibrate, WidensTheBandByTheSpreadOfRuns) {
  const Counts counts = kimi_linear();
  const Machine machine = load_machine("h200").value();
  std::vector<MeasuredPoint> points = runs_of(counts, machine);
  points[1].spread = 1.5;  // half the range of its runs, over the median
  const Band band = calibrate(counts, machine, Precision{}, points).value().band;
  EXPECT_NEAR(band.high, 2.5, 1e-9);
  EXPECT_NEAR(band.low, 1 / 2.5, 1e-9);
}

// Without one of two points hardly anything is fitted: the unseen error of such a fit is that of the record.
TEST(Calibrate, FewPointsKeepThePublishedBand) {
  const Counts counts = kimi_linear();
  const Machine machine = load_machine("h200").value();
  std::vector<MeasuredPoint> points = runs_of(counts, machine);
  for (const size_t kept : {1u, 2u}) {
    points.resize(kept);
    for (MeasuredPoint& point : points) point.seconds *= 9;
    points[0].spread = 0.25;
    const Calibration c = calibrate(counts, machine, Precision{}, points, {0.9, 1.2, "published"}).value();
    EXPECT_LE(c.band.low, 0.9 / 1.25 * (1 + 1e-12));
    EXPECT_GE(c.band.high, 1.2 * 1.25 * (1 - 1e-12));
    EXPECT_THAT(c.band.source, HasSubstr("too few for a band of their own: published"));
    for (const CalibrationRow& row : c.rows) {
      EXPECT_LE(c.band.low * row.after, row.point.seconds);
      EXPECT_GE(c.band.high * row.after, row.point.seconds);
      // Alone, a point is unseen by the record as it came.
      if (kept == 1) {
        EXPECT_GT(row.point.seconds / row.unseen, c.band.high);
      }
    }
    points = runs_of(counts, machine);
  }
}

TEST(Calibrate, TheEstimateLiesWithinItsBand) {
  const Counts counts = kimi_linear();
  const Machine machine = load_machine("h200").value();
  for (const double factor : {0.2, 9.0, 1e9}) {
    std::vector<MeasuredPoint> points = runs_of(counts, machine);
    points.resize(3);
    for (MeasuredPoint& point : points) point.seconds *= factor;
    const Band band = calibrate(counts, machine, Precision{}, points).value().band;
    EXPECT_LE(band.low, 1);
    EXPECT_GE(band.high, 1);
    EXPECT_GE(band.low, 1 / kWidestBand);
    EXPECT_LE(band.high, kWidestBand);
  }
}

// Of many points each fit leaves out several: every row still has one that did not see it.
TEST(Calibrate, ManyPointsAreLeftOutInGroups) {
  const Counts counts = kimi_linear();
  const Machine machine = load_machine("h200").value();
  std::vector<MeasuredPoint> points;
  while (points.size() <= 2 * kMostLeftOut) {
    for (const MeasuredPoint& point : runs_of(counts, machine)) points.push_back(point);
  }
  points[kMostLeftOut + 3].seconds *= 4;  // all runs of that length but this one say otherwise
  const Calibration c = calibrate(counts, machine, Precision{}, points).value();
  ASSERT_EQ(c.rows.size(), points.size());
  EXPECT_THAT(c.band.source, HasSubstr("one of 100"));
  const CalibrationRow& odd = c.rows[kMostLeftOut + 3];
  EXPECT_GE(c.band.high, odd.point.seconds / odd.unseen * (1 - 1e-12));
  EXPECT_GT(odd.point.seconds / odd.unseen, odd.point.seconds / odd.after);
}

TEST(Calibrate, RefusesNothingAndOtherModels) {
  const Counts counts = kimi_linear();
  const Machine machine = load_machine("h200").value();
  EXPECT_THAT(calibrate(counts, machine, Precision{}, {}).error().message, HasSubstr("no measured points"));
  std::vector<MeasuredPoint> points = runs_of(counts, machine);
  points[2].parameters = 7e9;
  EXPECT_THAT(calibrate(counts, machine, Precision{}, points).error().message,
              HasSubstr("run 2: measured a model of 7e+09 parameters"));
}

}  // namespace
}  // namespace k3::plan
