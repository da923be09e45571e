#include "k3/plan/published/check.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "k3/base/report/quantile.h"
#include "k3/plan/cost/decode.h"
#include "k3/plan/cost/prefill.h"
#include "k3/plan/cost/service.h"
#include "k3/plan/cost/validate.h"

namespace k3::plan {
namespace {

constexpr double kMostShare = 0.8;  // of the rows that the usual band covers

ErrorSummary summarise(const std::vector<CheckRow>& rows, const std::function<bool(const Measurement&)>& wanted) {
  ErrorSummary s;
  std::vector<double> sizes, ratios;
  for (const CheckRow& row : rows) {
    if (!wanted(row.measurement)) continue;
    s.lowest = s.rows == 0 ? row.error : std::min(s.lowest, row.error);
    s.highest = s.rows == 0 ? row.error : std::max(s.highest, row.error);
    ++s.rows;
    sizes.push_back(std::abs(row.error));
    ratios.push_back(row.time_ratio);
  }
  if (s.rows == 0) return s;
  for (const double size : sizes) s.mean += size / static_cast<double>(s.rows);
  std::sort(sizes.begin(), sizes.end());
  s.median = quantile_of_sorted(sizes, 0.5);
  s.covers = covering_band(ratios);
  s.most = middle_band(ratios, kMostShare);
  return s;
}

Result<double> predict_step(const Measurement& m, const Deployment& d) {
  DecodeBatch batch;
  batch.requests = m.batch;
  batch.context_tokens = static_cast<double>(m.context);
  batch.draft_tokens = m.draft;
  K3_TRY(validate(batch));
  const double seconds = decode_step(d, batch).seconds;
  return m.quantity == Quantity::step_seconds ? seconds : m.accepted / seconds;
}

Result<double> predict_loop(const Measurement& m, const Deployment& d) {
  ClosedLoad load;
  load.concurrency = m.users;
  load.input_tokens = m.input;
  load.output_tokens = m.output;
  load.draft_tokens = m.draft;
  load.tokens_per_step = m.accepted;
  K3_TRY(validate(load));
  const ClosedLoop loop = closed_loop(d, load);
  switch (m.quantity) {
    case Quantity::tpot_seconds: return loop.tpot_seconds;
    case Quantity::ttft_seconds: return loop.ttft_seconds;
    case Quantity::output_tokens_per_second: return loop.output_tokens_per_second;
    default: return loop.tokens_per_second_per_gpu;
  }
}

}  // namespace

Band covering_band(std::vector<double> ratios) {
  Band band;
  if (ratios.empty()) return band;
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  band.low = *low, band.high = *high;
  return band;
}

Band middle_band(std::vector<double> ratios, double share) {
  Band band;
  if (ratios.empty()) return band;
  std::sort(ratios.begin(), ratios.end());
  band.low = quantile_of_sorted(ratios, (1 - share) / 2);
  band.high = quantile_of_sorted(ratios, (1 + share) / 2);
  return band;
}

Result<double> predict(const Measurement& m, const Counts& counts) {
  K3_TRY_ASSIGN(const Machine machine, load_machine(m.hw));
  Precision precision;
  precision.cache = m.latent_bytes;
  const Deployment d{counts, machine.hw, machine.efficiency, m.layout, precision};
  K3_TRY(validate(d).with_context(m.name));
  switch (m.quantity) {
    case Quantity::step_seconds:
    case Quantity::user_tokens_per_second: return predict_step(m, d).with_context(m.name);
    case Quantity::prefill_tokens_per_second_gpu: {
      const PrefillSequence sequences{m.input, 0, m.sequences};
      K3_TRY(validate(PrefillBatch{{&sequences, 1}, 1}).with_context(m.name));
      return prefill_time(d, {{&sequences, 1}, 1}).tokens_per_second() / static_cast<double>(m.layout.gpus());
    }
    default: return predict_loop(m, d).with_context(m.name);
  }
}

Result<Check> check(const std::vector<Measurement>& measurements, const Counts& counts) {
  Check out;
  for (const Measurement& m : measurements) {
    CheckRow row;
    row.measurement = m;
    K3_TRY_ASSIGN(row.predicted, predict(m, counts));
    row.error = row.predicted / m.measured - 1;
    row.time_ratio = is_time(m.quantity) ? m.measured / row.predicted : row.predicted / m.measured;
    out.rows.push_back(std::move(row));
  }
  out.scored = summarise(out.rows, [](const Measurement& m) { return m.scored(); });
  out.out_of_sample = summarise(out.rows, [](const Measurement& m) { return !m.fitted; });
  out.fitted = summarise(out.rows, [](const Measurement& m) { return m.fitted; });
  return out;
}

}  // namespace k3::plan
