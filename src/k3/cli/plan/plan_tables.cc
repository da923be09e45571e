// The longer tables of `k3 plan`: sweep, parts of a step, two scenarios, calibration, published measurements, cells.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "k3/base/units.h"
#include "k3/cli/common.h"
#include "k3/cli/plan/plan_text.h"
#include "k3/cli/plan/plan_words.h"

namespace k3::cli {

using namespace words;
using plan::LayoutAnswer;
using plan::Scenario;
using plan::UserPoint;

std::string sweep_text(const PlanSetup& setup, const plan::Answer& answer) {
  const Scenario& s = setup.scenario;
  std::vector<std::string> header = {"layout", "users", "TTFT p95", "TPOT p50", "TPOT p95"};
  std::ranges::move(rates_header(s), std::back_inserter(header));
  Table table(std::move(header));
  for (const plan::FrontierPoint& f : frontier(answer)) {
    const UserPoint& p = f.point;
    std::vector<std::string> row = {layout_text(f.layout),
                                    format_grouped(p.users),
                                    time(p.ttft_p95),
                                    tpot(p.tpot_p50),
                                    tpot(p.tpot_p95)};
    std::ranges::move(rates_of(s, p), std::back_inserter(row));
    table.row(std::move(row));
  }
  return fmt::format("\nfrontier of {} layouts: nothing else has both faster users and more tokens/s/GPU\n{}",
                     answer.layouts.size(), table.text());
}

std::string explain_text(const PlanSetup& setup, const LayoutAnswer& chosen) {
  const Scenario& s = setup.scenario;
  const int64_t users = chosen.point ? chosen.point->users : 1;
  const plan::Hardware& hw = s.machine.hw;
  const auto parts_table = [&](const auto& parts, double whole) {
    Table table({"part", "ms", "share", "MB", "GFLOP", "of memory", "of BF16"});
    for (const plan::NamedPart& named : parts) {
      const plan::Part& p = named.part;
      const bool moved = std::string_view(named.name) == "communication" || std::string_view(named.name) == "hop";
      const auto roof = [&](double amount, double rate) {
        return p.seconds > 0 && amount > 0 ? percent(amount / p.seconds / rate) : std::string();
      };
      table.row({std::string(plan::part_text(named.name)), fmt::format("{:.3f}", p.seconds * 1e3),
                 percent(p.seconds / whole), p.bytes > 0 ? fmt::format("{:.1f}", p.bytes / 1e6) : "",
                 p.flops > 0 ? fmt::format("{:.1f}", p.flops / 1e9) : "",
                 moved ? "" : roof(p.bytes, hw.hbm_bytes_per_second), roof(p.flops, hw.bf16_flops_per_second)});
    }
    return table.text();
  };
  const plan::DecodeStep step = decode_of(s, chosen.layout, users);
  std::string out = fmt::format(
      "\na decode step of {} user{} at {} tokens, on the busiest GPU of a stage: {} requests, {} rows, {:.0f} experts "
      "touched\n",
      users, users == 1 ? "" : "s", format_grouped(static_cast<int64_t>(s.load.mean_context())), step.group_requests,
      step.rows, step.distinct_experts);
  out += parts_table(step.parts(), step.stage_seconds);
  out += fmt::format("stage {}", time(step.stage_seconds));
  if (chosen.layout.pp > 1)
    out += fmt::format(" x {} + {} hops of {}", chosen.layout.pp, chosen.layout.pp - 1, time(step.hop_seconds));
  out += fmt::format(" + host {}", time(step.host_seconds));
  if (step.draft_seconds > 0) out += fmt::format(" + draft {}", time(step.draft_seconds));
  out += fmt::format(" = {}\n", time(step.seconds));
  const int64_t requests = prefill_batch_requests(s, chosen.layout, users);
  const plan::PrefillTime prefill = prefill_of(s, chosen.layout, requests);
  out +=
      fmt::format("\na prefill of {} x {} tokens{}, on a GPU of a stage\n", requests, format_grouped(s.load.new_tokens()),
                  s.load.hit_tokens() > 0 ? fmt::format(" after {} reused ones", format_grouped(s.load.hit_tokens())) : "");
  out += parts_table(prefill.parts(), prefill.seconds);
  out += fmt::format("{} at the steady rate, {} for 1,000 tokens; {} until the last stage is done\n", time(prefill.seconds),
                     time(prefill.seconds_per_1k_tokens()), time(prefill.latency_seconds));
  return out;
}

std::string against_text(const PlanSetup& first, const plan::Answer& first_answer, const PlanSetup& second,
                         const plan::Answer& second_answer) {
  Table table({"", scenario_name(first.scenario), scenario_name(second.scenario), "change"});
  const auto chosen = [](const plan::Answer& answer) -> const LayoutAnswer* {
    return answer.best ? &answer.layouts[*answer.best] : nullptr;
  };
  const LayoutAnswer *a = chosen(first_answer), *b = chosen(second_answer);
  const auto text = [](const LayoutAnswer* of, const auto& what) {
    return of == nullptr ? std::string("does not fit") : what(*of);
  };
  const auto row = [&](const char* name, const auto& value, const auto& print) {
    const bool both = a != nullptr && b != nullptr && a->point && b->point;
    const auto cell = [&](const LayoutAnswer* of) {
      return text(of, [&](const LayoutAnswer& l) { return l.point ? print(value(l)) : std::string("too many users"); });
    };
    table.row({name, cell(a), cell(b), both ? signed_percent(value(*b) / value(*a) - 1) : ""});
  };
  table.row({"layout", text(a, [](const LayoutAnswer& l) { return layout_text(l.layout); }),
             text(b, [](const LayoutAnswer& l) { return layout_text(l.layout); }), ""});
  const auto grouped = [](double v) { return format_grouped(std::llround(v)); };
  row(
      "users that fit", [](const LayoutAnswer& l) { return static_cast<double>(l.capacity.requests); }, grouped);
  row(
      "users", [](const LayoutAnswer& l) { return static_cast<double>(l.point->users); }, grouped);
  row(
      "TTFT p50", [](const LayoutAnswer& l) { return l.point->ttft_p50; }, time);
  row(
      "TTFT p95", [](const LayoutAnswer& l) { return l.point->ttft_p95; }, time);
  if (std::min(first.scenario.load.output_tokens, second.scenario.load.output_tokens) > 1) {
    row(
        "TPOT p50", [](const LayoutAnswer& l) { return l.point->tpot_p50; }, time);
    row(
        "TPOT p95", [](const LayoutAnswer& l) { return l.point->tpot_p95; }, time);
  }
  row(
      "output tokens/s", [](const LayoutAnswer& l) { return l.point->output_per_second; }, count);
  row(
      "tokens/s/GPU", [](const LayoutAnswer& l) { return l.point->tokens_per_second_gpu; }, count);
  if (first.scenario.gpu_hour > 0 && second.scenario.gpu_hour > 0) {
    row(
        "cost of a million tokens", [](const LayoutAnswer& l) { return l.point->cost_per_million; }, price);
  }
  return "\n" + table.text();
}

namespace {

// A share of a peak above 1 says that the record's peak is too low for this machine, or what ran stayed in a cache.
std::string above_peak(const plan::Calibration& c) {
  std::string out;
  for (const auto& [suffix, cell] : {std::pair("_bytes", "hw.hbm_bytes_per_second"), std::pair("_flops", "hw.bf16_flops_per_second")}) {
    std::string above;
    for (const plan::CalibrationFactor& f : c.factors) {
      if (f.constant.ends_with(suffix) && f.after > 1) above += fmt::format("{}{} is {:.2f}", above.empty() ? "" : ", ", f.constant, f.after);
    }
    if (above.empty()) continue;
    out += fmt::format(
        "\n{} of the peak: the runs were faster than {} of the record allows.\nCorrect the record (k3 bench ceiling measures "
        "it), or measure a model that no cache holds.\n",
        above, cell);
  }
  return out;
}

}  // namespace

std::string calibration_text(const plan::Calibration& c) {
  std::string out = "\ncalibration\n";
  std::vector<std::vector<std::string>> points = {
      {"measured", "time", "model before", "after", "error", "unseen", "it moved"}};
  for (const plan::CalibrationRow& row : c.rows) {
    const double seconds = row.point.seconds;
    points.push_back({row.point.name, time(seconds), time(row.before), time(row.after),
                      signed_percent(row.after / seconds - 1), signed_percent(row.unseen / seconds - 1),
                      row.moved.empty() ? "nothing" : fmt::format("{} x {:.2f}", row.moved, row.moved_by)});
  }
  Table factors({"constant", "before", "after", "factor"});
  for (const plan::CalibrationFactor& f : c.factors) {
    factors.row({f.constant, fmt::format("{:.4g}", f.before), fmt::format("{:.4g}", f.after),
                 fmt::format("{:.2f}", f.after / f.before)});
  }
  return out + columns(points, {0, 6}) + "unseen: by a fit without that point" +
         (c.rows.size() < plan::kLeastBandPoints ? "" : "; it makes the band") + "\n\n" + factors.text() + above_peak(c);
}

std::string check_text(const plan::Check& check) {
  std::vector<std::vector<std::string>> rows = {{"measurement", "measured", "model", "error", "", "note", "source"}};
  std::vector<std::string> notes;  // each once, below the table
  for (const plan::CheckRow& row : check.rows) {
    const plan::Measurement& m = row.measurement;
    const auto value = [&](double v) { return is_time(m.quantity) ? time(v) : count(v); };
    std::vector<size_t> numbers;
    for (const std::string& note : {m.assumed.empty() ? "" : "not published: " + m.assumed, m.note}) {
      if (note.empty()) continue;
      auto at = std::find(notes.begin(), notes.end(), note);
      if (at == notes.end()) at = notes.insert(notes.end(), note);
      numbers.push_back(static_cast<size_t>(at - notes.begin()) + 1);
    }
    std::sort(numbers.begin(), numbers.end());
    const char* const use = m.fitted ? "fitted" : m.scored() ? "scored" : "shown";
    rows.push_back({m.name, value(m.measured), value(row.predicted), signed_percent(row.error), use,
                    fmt::format("{}", fmt::join(numbers, ",")), m.source});
  }
  const auto summary = [](std::string_view name, const plan::ErrorSummary& s) {
    return fmt::format("{:<38}{:>3} rows  mean |error| {:>5.1f} %  median {:>5.1f} %  from {:+.1f} to {:+.1f} %\n", name,
                       s.rows, 100 * s.mean, 100 * s.median, 100 * s.lowest, 100 * s.highest);
  };
  std::string out = columns(rows, {0, 4, 6}) + "\n";
  for (size_t i = 0; i < notes.size(); ++i) out += fmt::format("{}  {}\n", i + 1, notes[i]);
  out +=
      "error: (model - measured) / measured. shown: inputs that had to be assumed; fitted: constants were found from the "
      "row.\n\n";
  out += summary("scored (all inputs published)", check.scored);
  out += summary("all out of sample, inputs assumed", check.out_of_sample);
  out += summary("fitted (tests nothing)", check.fitted);
  out += fmt::format(
      "\nscored rows took {:.2f} to {:.2f} times the model's time; the middle 80 % of them {:.2f} to {:.2f}: the band that "
      "k3 plan prints\n",
      check.scored.covers.low, check.scored.covers.high, check.scored.most.low, check.scored.most.high);
  return out;
}

std::string cells_text(const plan::Machine& machine) {
  std::vector<std::vector<std::string>> rows = {{"cell", "value", "least", "most", "meaning"}};
  for (const plan::CellInfo& cell : cells(machine)) {
    rows.push_back({cell.name, fmt::format("{:.6g}", cell.value), fmt::format("{:g}", cell.least),
                    fmt::format("{:g}", cell.most), std::string(cell.about)});
  }
  return machine.hw.name + "\n" + columns(rows, {0, 4});
}

}  // namespace k3::cli
