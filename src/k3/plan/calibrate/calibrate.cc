#include "k3/plan/calibrate/calibrate.h"

#include <algorithm>
#include <cmath>

#include "k3/plan/advise/answer.h"
#include "k3/plan/calibrate/fit.h"
#include "k3/plan/cost/validate.h"

namespace k3::plan {
namespace {

// What runs on one accelerator can tell. Shares may pass 1: a record may be worse than its machine (a cache that holds the
// weights, a peak given too low).
constexpr double kLeastShare = 1e-5, kMostShare = 10, kLeastSeconds = 0, kMostSeconds = 10;
struct Constant {
  std::string_view name;
  double least, most;
};
constexpr Constant kConstants[] = {
    {"weight_bytes", kLeastShare, kMostShare},          {"state_bytes", kLeastShare, kMostShare},
    {"attention_bytes", kLeastShare, kMostShare},       {"gemm_flops", kLeastShare, kMostShare},
    {"decode_gemm_flops", kLeastShare, kMostShare},     {"routed_flops", kLeastShare, kMostShare},
    {"attention_flops", kLeastShare, kMostShare},       {"kernel_seconds", kLeastSeconds, kMostSeconds},
    {"host_step_seconds", kLeastSeconds, kMostSeconds}, {"request_seconds", kLeastSeconds, kMostSeconds},
};
constexpr double kMoved = 0.01;
constexpr double kSameModel = 0.02;  // of the parameters: a vision tower may be counted or not

double predicted(const Scenario& s, const MeasuredPoint& point) {
  const Deployment d = deployment_of(s, Layout{});
  switch (point.kind) {
    case MeasuredPoint::Kind::decode_step: {
      DecodeBatch batch;
      batch.requests = point.users;
      batch.context_tokens = point.context;
      return decode_step(d, batch).seconds;
    }
    case MeasuredPoint::Kind::prefill: {
      const PrefillSequence prompts{static_cast<int64_t>(point.input), static_cast<int64_t>(point.past), point.users};
      return prefill_time(d, {{&prompts, 1}, 1}).seconds;
    }
    case MeasuredPoint::Kind::ttft:
    case MeasuredPoint::Kind::tpot: break;
  }
  Scenario loop = s;
  loop.load.input_tokens = static_cast<int64_t>(std::llround(point.input + point.past));
  loop.load.output_tokens = std::max<int64_t>(2, std::llround(point.output));
  loop.load.hit = point.past / (point.input + point.past);
  const UserPoint users = point_of(loop, Layout{}, point.users);
  return point.kind == MeasuredPoint::Kind::ttft ? users.ttft_p50 : users.tpot_p50;
}

Efficiency with_values(Efficiency efficiency, std::span<const double> values) {
  for (size_t j = 0; j < values.size(); ++j) *efficiency_cell(kConstants[j].name, &efficiency) = values[j];
  return efficiency;
}

Status check_points(const Counts& counts, const std::vector<MeasuredPoint>& points) {
  if (points.empty()) return fail(Code::invalid_argument, "--calibration: no measured points");
  const double known = counts.modules.total_params();
  for (const MeasuredPoint& point : points) {
    if (point.parameters == 0 || std::abs(point.parameters / known - 1) < kSameModel) continue;
    return fail(Code::invalid_argument,
                "{}: measured a model of {:.4g} parameters, this one has {:.4g}; name it with --calibration-model",
                point.name, point.parameters, known);
  }
  return {};
}

CalibrationRow row_of(const Scenario& s, const MeasuredPoint& point, const Efficiency& fitted, std::span<const double> all,
                      std::span<const double> without) {
  CalibrationRow row;
  row.point = point;
  Scenario other = s;
  row.before = predicted(other, point);
  other.machine.efficiency = fitted;
  row.after = predicted(other, point);
  other.machine.efficiency = with_values(s.machine.efficiency, without);
  row.unseen = predicted(other, point);
  for (size_t j = 0; j < all.size(); ++j) {
    const double by = all[j] / std::max(without[j], 1e-300);
    if (std::abs(std::log(by)) <= std::max(kMoved, std::abs(std::log(row.moved_by)))) continue;
    row.moved = kConstants[j].name;
    row.moved_by = by;
  }
  return row;
}

Band band_of(const std::vector<CalibrationRow>& rows, size_t fits, const Band& published) {
  const bool few = rows.size() < kLeastBandPoints;
  Band band;  // holds 1: the estimate itself
  if (few) band.low = std::min(1.0, published.low), band.high = std::max(1.0, published.high);
  const Band before = band;
  for (const CalibrationRow& row : rows) {
    // A factor both ways: a run twice as slow as the median says nothing of runs that take no time.
    const double widened = 1 + row.point.spread;
    if (few) {
      // The estimate after the fit is told, so the band is around that: published errors and this run's spread.
      band.low = std::min(band.low, before.low / widened), band.high = std::max(band.high, before.high * widened);
    }
    const double ratio = row.point.seconds / (few ? row.after : row.unseen);
    band.low = std::min(band.low, ratio / widened), band.high = std::max(band.high, ratio * widened);
  }
  band.low = std::max(band.low, 1 / kWidestBand), band.high = std::min(band.high, kWidestBand);
  const std::string points = fmt::format("{} measured point{}", rows.size(), rows.size() == 1 ? "" : "s");
  if (few) {
    band.source = fmt::format("{}, too few for a band of their own: {}, widened by them", points,
                              published.source.empty() ? "no band" : published.source);
  } else if (fits < rows.size()) {
    band.source = fmt::format("{}, each against a fit without a group of them, one of {}", points, fits);
  } else {
    band.source = points + ", each against a fit without it";
  }
  return band;
}

}  // namespace

Result<Calibration> calibrate(const Counts& counts, const Machine& machine, const Precision& precision,
                              const std::vector<MeasuredPoint>& points, const Band& published) {
  K3_TRY(check_points(counts, points));
  Scenario s;
  s.counts = counts, s.machine = machine, s.precision = precision;
  K3_TRY(validate(deployment_of(s, Layout{})));
  std::vector<FitConstant> constants;
  for (const auto& [name, least, most] : kConstants) {
    const double value = *efficiency_cell(name, &s.machine.efficiency);
    constants.push_back({std::max(value, 1e-9), least, most});  // a latency of zero has no logarithm
  }
  std::vector<FitPoint> measured;
  for (const MeasuredPoint& point : points) measured.push_back({point.seconds, point.spread});
  Scenario moved = s;  // one for all predictions: there are many, and a scenario is large
  std::vector<double*> moving;
  for (const Constant& constant : kConstants) moving.push_back(efficiency_cell(constant.name, &moved.machine.efficiency));
  const Predict predict = [&](std::span<const double> values, size_t i) {
    for (size_t j = 0; j < values.size(); ++j) *moving[j] = values[j];
    return predicted(moved, points[i]);
  };
  const std::vector<double> all = fit_constants(constants, measured, predict);
  Calibration out;
  out.efficiency = with_values(machine.efficiency, all);
  for (size_t j = 0; j < all.size(); ++j) {
    const double before = *efficiency_cell(kConstants[j].name, &s.machine.efficiency);
    if (std::abs(all[j] - before) >= kMoved * before)
      out.factors.push_back({std::string(kConstants[j].name), before, all[j]});
  }
  const size_t groups = std::min(points.size(), kMostLeftOut);
  std::vector<std::vector<double>> without;
  for (size_t g = 0; g < groups; ++g)
    without.push_back(fit_constants(constants, measured, predict, {g, groups}, all));
  for (size_t i = 0; i < points.size(); ++i) out.rows.push_back(row_of(s, points[i], out.efficiency, all, without[i % groups]));
  out.band = band_of(out.rows, groups, published);
  return out;
}

}  // namespace k3::plan
