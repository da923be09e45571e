#include <algorithm>
#include <cmath>

#include "k3/base/report/axis.h"
#include "k3/base/report/html_report.h"
#include "k3/base/report/svg.h"
#include "k3/base/units.h"
#include "k3/plan/report/sim_plots.h"
#include "k3/plan/report/sim_report.h"

namespace k3::plan {
namespace {

using report::unit_text;

constexpr size_t kMostRows = 200;  // of the table of requests

std::string seconds_text(double value) { return std::isfinite(value) ? unit_text(value, Unit::seconds) : "-"; }
std::string percent_text(double value) { return unit_text(value, Unit::percent); }

void add_tiles(HtmlReport& page, const SimReport& r) {
  const SimSummary& s = r.result.summary;
  std::vector<Tile> tiles = {
      {"requests done", format_grouped(s.done),
       s.done == s.requests ? "all" : fmt::format("of {}", format_grouped(s.requests))},
      {"TTFT p50", seconds_text(s.ttft.p50), "p95 " + seconds_text(s.ttft.p95)},
      {"TPOT p50", seconds_text(s.tpot.p50), "p95 " + seconds_text(s.tpot.p95)},
      {"prompt tokens skipped", percent_text(s.hit_ratio()), "blocks matched " + percent_text(s.matched_ratio())},
      {"output tokens/s", unit_text(s.output_per_second(), Unit::count),
       fmt::format(
           "{} a request",
           unit_text(s.done > 0 ? static_cast<double>(s.generated_tokens) / static_cast<double>(s.done) : 0, Unit::count))},
      {"preemptions", format_grouped(s.preemptions),
       fmt::format("{} evictions",
                   unit_text(static_cast<double>(s.cache.evicted_pages + s.cache.evicted_checkpoints), Unit::count))}};
  if (r.scenario.slo_ttft_seconds > 0 || r.scenario.slo_tpot_seconds > 0) {
    tiles.push_back({"within the objective",
                     percent_text(s.requests > 0 ? static_cast<double>(s.within_slo) / static_cast<double>(s.requests) : 0),
                     fmt::format("{:.3g} requests/s", s.goodput_per_second())});
  }
  page.tiles(tiles);
}

ReportTable latency_table(const SimSummary& s) {
  ReportTable table;
  table.title = "Latencies";
  table.header = {"", "mean", "p50", "p90", "p95", "p99", "max"};
  const auto row = [&](const char* name, const Spread& x) {
    if (x.count == 0) return;
    table.rows.push_back({name, seconds_text(x.mean), seconds_text(x.p50), seconds_text(x.p90), seconds_text(x.p95),
                          seconds_text(x.p99), seconds_text(x.max)});
  };
  row("time to the first token", s.ttft);
  row("time for each further token", s.tpot);
  row("waiting", s.queue);
  row("end to end", s.e2e);
  return table;
}

ReportTable reason_table(const SimSummary& s) {
  static constexpr const char* kMeaning[6] = {
      "nothing: all blocks that leave a token to compute", "no block was there", "the latents ended",
      "the last checkpoint came before the last block",    "the prompt itself",  "an idle sequence went on, to the token"};
  ReportTable table;
  table.title = "What cut the prefixes";
  table.header = {"reason", "meaning", "requests"};
  table.left_columns = 2;
  for (int i = 0; i < 6; ++i) {
    if (s.by_reason[i] == 0) continue;
    table.rows.push_back({i == 5 ? "idle" : std::string(cache::hit_limit_name(static_cast<cache::HitLimit>(i))), kMeaning[i],
                          format_grouped(s.by_reason[i])});
  }
  return table;
}

ReportTable policy_table(const SimReport& r) {
  ReportTable table;
  table.title = "Checkpoint policies on the same requests";
  table.header = {"policy", "skipped", "checkpoints", "bytes", "TTFT p50", "TTFT p95", "TPOT p50"};
  for (const PolicyPoint& p : r.policies) {
    const SimSummary& s = p.summary;
    table.rows.push_back({p.policy, fmt::format("{:.2f} %", 100 * s.hit_ratio()), format_grouped(s.most_checkpoints),
                          unit_text(s.checkpoint_bytes, Unit::bytes), seconds_text(s.ttft.p50), seconds_text(s.ttft.p95),
                          seconds_text(s.tpot.p50)});
  }
  return table;
}

ReportTable load_table(const SimReport& r) {
  ReportTable table;
  table.title = "The same requests at rising load";
  table.header = {"load", "output tokens/s", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "skipped", "in the objective"};
  for (const LoadPoint& p : r.loads) {
    const SimSummary& s = p.summary;
    table.rows.push_back(
        {p.load, unit_text(s.output_per_second(), Unit::count), seconds_text(s.ttft.p50), seconds_text(s.ttft.p95),
         seconds_text(s.tpot.p50), seconds_text(s.tpot.p95), percent_text(s.hit_ratio()),
         percent_text(s.requests > 0 ? static_cast<double>(s.within_slo) / static_cast<double>(s.requests) : 0)});
  }
  return table;
}

ReportTable request_table(const SimReport& r) {
  ReportTable table;
  const size_t rows = std::min(kMostRows, r.result.records.size());
  table.title = rows < r.result.records.size() ? fmt::format("The first {} requests", rows) : "Requests";
  table.header = {"request", "cut by",  "arrival", "waited", "TTFT",      "TPOT",
                  "prompt",  "skipped", "matched", "output", "preempted", "replica"};
  table.left_columns = 2;
  table.collapsed = true;
  for (size_t i = 0; i < rows; ++i) {
    const SimRequest& q = r.workload.requests[i];
    const SimRecord& x = r.result.records[i];
    const auto time = [](double value, bool there) { return there ? seconds_text(value) : "-"; };
    table.rows.push_back(
        {q.session >= 0 ? fmt::format("{} (session {}, turn {})", i, q.session, q.turn) : fmt::format("{}", i),
         x.outcome == SimOutcome::done || x.outcome == SimOutcome::cut ? std::string(cut_reason(x))
                                                                       : std::string(sim_outcome_name(x.outcome)),
         time(x.arrival, x.arrival >= 0), time(x.queue_seconds(), x.admitted >= 0), time(x.ttft(), x.first_token >= 0),
         time(x.tpot(), x.tpot() >= 0), format_grouped(q.input_tokens), format_grouped(x.cached), format_grouped(x.matched),
         format_grouped(x.generated), fmt::format("{}", x.preemptions), fmt::format("{}", x.replica)});
  }
  return table;
}

}  // namespace

ReportTable against_table(const SimDigest& a, const SimDigest& b) {
  ReportTable table;
  table.title = "Two scenarios";
  table.header = {"", a.name, b.name, "ratio"};
  const auto row = [&](const char* name, double x, double y, const std::string& tx, const std::string& ty) {
    table.rows.push_back({name, tx, ty, x != 0 && std::isfinite(y / x) ? fmt::format("{:.3g}", y / x) : "-"});
  };
  const auto at = [](const std::vector<double>& values, size_t percent) {
    return values.size() > percent ? values[percent] : NAN;
  };
  const auto time = [&](const char* name, double x, double y) { row(name, x, y, seconds_text(x), seconds_text(y)); };
  time("TTFT p50", at(a.ttft, 50), at(b.ttft, 50));
  time("TTFT p95", at(a.ttft, 95), at(b.ttft, 95));
  time("TPOT p50", at(a.tpot, 50), at(b.tpot, 50));
  time("TPOT p95", at(a.tpot, 95), at(b.tpot, 95));
  row("prompt tokens skipped", a.hit_ratio, b.hit_ratio, percent_text(a.hit_ratio), percent_text(b.hit_ratio));
  row("output tokens/s", a.output_per_second, b.output_per_second, unit_text(a.output_per_second, Unit::count),
      unit_text(b.output_per_second, Unit::count));
  row("requests/s within the objective", a.goodput_per_second, b.goodput_per_second,
      fmt::format("{:.3g}", a.goodput_per_second), fmt::format("{:.3g}", b.goodput_per_second));
  row("requests done", static_cast<double>(a.done), static_cast<double>(b.done),
      fmt::format("{} of {}", format_grouped(a.done), format_grouped(a.requests)),
      fmt::format("{} of {}", format_grouped(b.done), format_grouped(b.requests)));
  time("whole run", a.seconds, b.seconds);
  row("preemptions", static_cast<double>(a.preemptions), static_cast<double>(b.preemptions), format_grouped(a.preemptions),
      format_grouped(b.preemptions));
  return table;
}

std::vector<SvgFile> sim_svgs(const SimReport& r) {
  std::vector<std::pair<std::string, Plot>> plots = {
      {"ttft", latency_plot(r, "Time to the first token", &SimDigest::ttft, r.scenario.slo_ttft_seconds)},
      {"tpot", latency_plot(r, "Time for each further token", &SimDigest::tpot, r.scenario.slo_tpot_seconds)},
      {"requests", load_plot(r)},
      {"pool", pool_plot(r)},
      {"hits", hit_plot(r)},
      {"evictions", eviction_plot(r)}};
  if (!r.loads.empty()) plots.emplace_back("load", load_curve(r));
  if (!r.policies.empty()) plots.emplace_back("policies", policy_plot(r));
  constexpr double kWidth = 760, kHeight = 400;
  std::vector<SvgFile> out;
  for (const auto& [name, plot] : plots) out.push_back({name + ".svg", render_svg(plot, {kWidth, kHeight, true, ""})});
  return out;
}

std::string sim_html(const SimReport& r) {
  HtmlReport page(r.title, r.subtitle);
  const SimDigest digest = digest_of(r);
  add_tiles(page, r);
  if (r.against) {
    page.heading("Comparison");
    page.table(against_table(digest, *r.against));
  }
  page.heading("Latency");
  page.plot(latency_plot(r, "Time to the first token", &SimDigest::ttft, r.scenario.slo_ttft_seconds));
  page.plot(latency_plot(r, "Time for each further token", &SimDigest::tpot, r.scenario.slo_tpot_seconds));
  page.table(latency_table(r.result.summary));
  if (!r.loads.empty()) {
    page.heading("Load");
    page.plot(load_curve(r));
    page.table(load_table(r));
  }
  page.heading("Over time");
  page.plot(load_plot(r));
  page.plot(pool_plot(r));
  page.plot(hit_plot(r));
  page.plot(eviction_plot(r));
  page.heading("Prefix cache");
  page.table(reason_table(r.result.summary));
  if (!r.policies.empty()) {
    page.plot(policy_plot(r));
    page.table(policy_table(r));
  }
  page.heading("Requests");
  page.table(request_table(r));
  page.heading("Settings");
  ReportTable settings;
  settings.header = {"setting", "value"};
  settings.left_columns = 2;
  for (const auto& [name, value] : r.settings) settings.rows.push_back({name, value});
  page.table(settings);
  page.paragraph(
      "Made by k3 sim: the scheduler and the cache of the engine on modelled time; docs/simulator.md says what is modelled "
      "how.");
  return page.html();
}

}  // namespace k3::plan
