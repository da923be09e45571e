#include "k3/plan/report/plan_html.h"

#include <algorithm>
#include <cmath>

#include "k3/base/report/html_report.h"
#include "k3/base/report/svg.h"
#include "k3/base/units.h"
#include "k3/plan/advise/advice.h"
#include "k3/plan/report/plan_plots.h"
#include "k3/plan/report/words.h"

namespace k3::plan {
namespace {

using namespace words;

std::string band(const Band& b, double seconds) { return time(seconds * b.low) + " to " + time(seconds * b.high); }
std::string machines(const Scenario& s) { return fmt::format("{} {}", s.gpus, s.machine.hw.name); }

std::string subtitle(const Scenario& s) {
  std::string text = fmt::format("{}; prompts of {} tokens, answers of {}", machines(s), format_grouped(s.load.input_tokens),
                                 format_grouped(s.load.output_tokens));
  if (s.load.hit > 0) text += fmt::format(", {} of the prompt from the prefix cache", percent(s.load.hit));
  if (s.draft.tokens > 0) text += fmt::format(", {} drafted tokens a step", s.draft.tokens);
  if (s.objective.ttft_seconds < kNoLimit) text += "; TTFT p95 at most " + time(s.objective.ttft_seconds);
  if (s.objective.tpot_seconds < kNoLimit) text += "; TPOT p95 at most " + time(s.objective.tpot_seconds);
  return text;
}

std::vector<Tile> tiles_of(const Scenario& s, const LayoutAnswer& chosen) {
  const Capacity& c = chosen.capacity;
  std::vector<Tile> tiles = {
      {"Layout", layout_text(chosen.layout),
       fmt::format("{} weights, {} free on each GPU", gigabytes(c.weights_bytes), gigabytes(c.free_bytes))},
      {"Users that fit", format_grouped(c.requests), fmt::format("at {} tokens", format_grouped(s.load.total_tokens()))}};
  if (!chosen.point) return tiles;
  const UserPoint& p = *chosen.point;
  const bool asked = s.objective.ttft_seconds < kNoLimit || s.objective.tpot_seconds < kNoLimit;
  const char* const unasked = s.load.users > 0 ? "as asked" : "all that fit";
  tiles.push_back({"Users", format_grouped(p.users),
                   !asked    ? unasked
                   : p.meets ? "within the objective"
                             : "the objective is missed"});
  tiles.push_back({"TTFT p95", time(p.ttft_p95), fmt::format("{}; p50 {}", band(s.band, p.ttft_p95), time(p.ttft_p50))});
  if (s.load.output_tokens > 1)
    tiles.push_back({"TPOT p95", time(p.tpot_p95), fmt::format("{}; p50 {}", band(s.band, p.tpot_p95), time(p.tpot_p50))});
  tiles.push_back({"Tokens/s/GPU", count(p.tokens_per_second_gpu), count(p.output_per_second) + " output tokens/s in all"});
  const Bindings b = bindings_of(s, chosen);
  if (s.load.output_tokens > 1)
    tiles.push_back({"Decode is bound by", b.decode.what, percent(b.decode.share) + " of a step"});
  if (s.gpu_hour > 0) {
    tiles.push_back(
        {"A million tokens", price(p.cost_per_million), price(p.cost_per_million_output) + " for a million of output"});
  } else {
    tiles.push_back({"Prefill is bound by", b.prefill.what, percent(b.prefill.share) + " of it"});
  }
  return tiles;
}

ReportTable changes_table(const Scenario& s, const LayoutAnswer& chosen) {
  ReportTable table{
      "What would help most, the cheapest kind first",
      {"change", s.load.users > 0 ? "tokens/s in all" : "gain", "users", "TPOT p50", "tokens/s/GPU", "objective", "layout"},
      {},
      1,
      false};
  for (const Change& change : next_changes(s, chosen)) {
    const UserPoint& p = *change.answer.point;
    table.rows.push_back({change.what, whole_percent(change.gain - 1), format_grouped(p.users),
                          p.tpot_p50 > 0 ? time(p.tpot_p50) : "-", count(p.tokens_per_second_gpu),
                          p.meets ? "met" : "missed", layout_text(change.answer.layout)});
  }
  return table;
}

std::vector<std::string> point_cells(const UserPoint& p) {
  return {format_grouped(p.users),
          time(p.ttft_p50),
          time(p.ttft_p95),
          p.tpot_p50 > 0 ? time(p.tpot_p50) : "-",
          p.tpot_p95 > 0 ? time(p.tpot_p95) : "-",
          time(p.step_seconds),
          count(p.tokens_per_second_gpu),
          p.meets ? "met" : "missed"};
}

ReportTable ladder_table(const LayoutAnswer& chosen) {
  ReportTable table{"Users of this layout",
                    {"users", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "step", "tokens/s/GPU", "objective"},
                    {},
                    0,
                    true};
  for (const UserPoint& p : chosen.ladder) table.rows.push_back(point_cells(p));
  return table;
}

ReportTable frontier_table(const Answer& answer) {
  ReportTable table{"Layouts on the frontier",
                    {"layout", "users", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "step", "tokens/s/GPU", "objective"},
                    {},
                    1,
                    true};
  for (const FrontierPoint& f : frontier(answer)) {
    std::vector<std::string> row = point_cells(f.point);
    row.insert(row.begin(), layout_text(f.layout));
    table.rows.push_back(std::move(row));
  }
  return table;
}

template <class Parts>
ReportTable parts_table(std::string title, const Parts& parts, double whole, const Hardware& hw) {
  ReportTable table{
      std::move(title), {"part", "ms", "share", "MB", "GFLOP", "of memory's rate", "of BF16's rate"}, {}, 1, true};
  for (const NamedPart& named : parts) {
    const Part& p = named.part;
    const bool moved = std::string_view(named.name) == "communication" || std::string_view(named.name) == "hop";
    const auto roof = [&](double amount, double rate) {
      return p.seconds > 0 && amount > 0 ? percent(amount / p.seconds / rate) : std::string();
    };
    table.rows.push_back({std::string(part_text(named.name)), fmt::format("{:.3f}", p.seconds * 1e3),
                          percent(p.seconds / whole), p.bytes > 0 ? fmt::format("{:.1f}", p.bytes / 1e6) : "",
                          p.flops > 0 ? fmt::format("{:.1f}", p.flops / 1e9) : "",
                          moved ? "" : roof(p.bytes, hw.hbm_bytes_per_second), roof(p.flops, hw.bf16_flops_per_second)});
  }
  return table;
}

// Layouts stand in a sentence: in cells they would make the table wider than a phone.
std::string layouts_sentence(const Plan& a, const Plan& b) {
  const auto of = [](const Plan& plan) {
    const LayoutAnswer* const chosen = plan.chosen();
    return scenario_name(plan.scenario) + ": " + (chosen == nullptr ? "does not fit" : layout_text(chosen->layout));
  };
  return of(a) + "; " + of(b) + ".";
}

// "16 GB300" of "16 GB300-NVL72": a table of three columns has to go on a phone.
std::string short_name(const Scenario& s) { return s.name.empty() ? machines(s).substr(0, machines(s).find('-')) : s.name; }

ReportTable comparison_table(const Plan& a, const Plan& b) {
  ReportTable table{"The two scenarios", {"", short_name(a.scenario), short_name(b.scenario), "change"}, {}, 1, false};
  const LayoutAnswer *x = a.chosen(), *y = b.chosen();
  if (x == nullptr || y == nullptr || !x->point || !y->point) return table;
  const auto row = [&](const char* name, double u, double v, const auto& print) {
    table.rows.push_back({name, print(u), print(v), whole_percent(v / u - 1)});
  };
  const UserPoint &p = *x->point, &q = *y->point;
  const auto whole = [](double value) { return format_grouped(std::llround(value)); };
  row("users that fit", static_cast<double>(x->capacity.requests), static_cast<double>(y->capacity.requests), whole);
  row("users", static_cast<double>(p.users), static_cast<double>(q.users), whole);
  row("TTFT p95", p.ttft_p95, q.ttft_p95, time);
  if (std::min(a.scenario.load.output_tokens, b.scenario.load.output_tokens) > 1) {
    row("TPOT p50", p.tpot_p50, q.tpot_p50, time);
    row("TPOT p95", p.tpot_p95, q.tpot_p95, time);
  }
  row("output tokens/s", p.output_per_second, q.output_per_second, count);
  row("tokens/s/GPU", p.tokens_per_second_gpu, q.tokens_per_second_gpu, count);
  if (a.scenario.gpu_hour > 0 && b.scenario.gpu_hour > 0)
    row("cost of a million tokens", p.cost_per_million, q.cost_per_million, price);
  return table;
}

ReportTable calibration_table(const Calibration& c) {
  ReportTable table{"Calibration: what was measured, and what it moved",
                    {"measured", "it moved", "time", "model before", "after", "error", "unseen"},
                    {},
                    2,
                    false};
  for (const CalibrationRow& row : c.rows) {
    const double seconds = row.point.seconds;
    table.rows.push_back({row.point.name,
                          row.moved.empty() ? "nothing" : fmt::format("{} x {:.2f}", row.moved, row.moved_by), time(seconds),
                          time(row.before), time(row.after), whole_percent(row.after / seconds - 1),
                          whole_percent(row.unseen / seconds - 1)});
  }
  return table;
}

ReportTable nearest_table(const Missing& m) {
  ReportTable table{"What does fit", {"change", "layout", "requests"}, {}, 2, false};
  for (const Nearest& near : m.nearest) {
    table.rows.push_back({near.what, layout_text(near.answer.layout), format_grouped(near.answer.capacity.requests)});
  }
  return table;
}

void add_missing(HtmlReport& page, const Plan& plan) {
  const Missing m = missing_of(plan.scenario, plan.answer);
  page.paragraph(
      fmt::format("It does not fit: {} are missing on each GPU with {} ({} weights, {} reserve and workspaces, {} for a "
                  "request, of {}).",
                  gigabytes(m.bytes), layout_text(m.layout), gigabytes(m.capacity.weights_bytes),
                  gigabytes(m.capacity.reserved_bytes + m.capacity.extra_bytes), gigabytes(m.capacity.per_request_bytes),
                  gigabytes(m.capacity.memory_bytes)));
  page.table(nearest_table(m));
}

void add_comparison(HtmlReport& page, const Plan& plan, const Plan& against) {
  const ReportTable table = comparison_table(plan, against);
  if (!table.rows.empty()) page.table(table);
  page.paragraph(layouts_sentence(plan, against));
}

void add_plots(HtmlReport& page, const Plan& plan, const Plan* against) {
  for (const PagePlot& one : page_plots(plan, against)) {
    if (*one.heading != '\0') page.heading(one.heading);
    page.plot(one.plot);
  }
}

}  // namespace

std::string plan_html(const Plan& plan, const Plan* against) {
  const Scenario& s = plan.scenario;
  HtmlReport page("Plan for " + s.model, subtitle(s));
  if (plan.chosen() == nullptr) {
    add_missing(page, plan);
    if (against != nullptr) add_comparison(page, plan, *against);
    return page.html();
  }
  const LayoutAnswer& chosen = *plan.chosen();
  page.tiles(tiles_of(s, chosen));
  if (!chosen.point) {
    page.paragraph(fmt::format("{} users do not fit at {} tokens: {} do.", format_grouped(s.load.users),
                               format_grouped(s.load.total_tokens()), format_grouped(chosen.capacity.requests)));
    page.table(nearest_table(missing_of(s, plan.answer)));
  }
  if (against != nullptr) add_comparison(page, plan, *against);
  add_plots(page, plan, against != nullptr && against->chosen() != nullptr ? against : nullptr);
  page.heading("Numbers");
  if (chosen.point) page.table(changes_table(s, chosen));
  if (plan.calibration != nullptr) page.table(calibration_table(*plan.calibration));
  page.table(ladder_table(chosen));
  page.table(frontier_table(plan.answer));
  const int64_t users = chosen.point ? chosen.point->users : 1;
  const DecodeStep decode = decode_of(s, chosen.layout, users);
  page.table(
      parts_table(fmt::format("A decode step of {} users", users), decode.parts(), decode.stage_seconds, s.machine.hw));
  const int64_t requests = prefill_batch_requests(s, chosen.layout, users);
  const PrefillTime prefill = prefill_of(s, chosen.layout, requests);
  page.table(parts_table(fmt::format("A prefill of {} prompts", requests), prefill.parts(), prefill.seconds, s.machine.hw));
  page.paragraph(
      fmt::format("Times come from an analytical model; measured ones lie between {} and {} times them ({}).",
                  multiple_text(s.band.low), multiple_text(s.band.high), s.band.source));
  return page.html();
}

std::vector<SvgFile> plan_svgs(const Plan& plan, const Plan* against) {
  std::vector<SvgFile> out;
  if (plan.chosen() == nullptr) return out;
  constexpr double kWidth = 760, kHeight = 400;
  for (const PagePlot& one : page_plots(plan, against)) {
    out.push_back({std::string(one.name) + ".svg", render_svg(one.plot, {kWidth, kHeight, true, ""})});
  }
  return out;
}

}  // namespace k3::plan
