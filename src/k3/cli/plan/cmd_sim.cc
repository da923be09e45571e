// k3 sim: options to a simulation, the tables, the files.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "k3/base/file.h"
#include "k3/base/progress.h"
#include "k3/base/report/axis.h"
#include "k3/base/units.h"
#include "k3/base/utf8.h"
#include "k3/cli/common.h"
#include "k3/cli/plan/sim_outputs.h"
#include "k3/cli/plan/sim_setup.h"
#include "k3/plan/report/sim_report.h"
#include "k3/plan/sim/fleet.h"
#include "k3/plan/sim/policies.h"

namespace k3::cli {
namespace {

using plan::SimSummary;
using report::unit_text;

constexpr int64_t kMostOtherBytes = int64_t{1} << 30;
constexpr size_t kMostLoads = 64;

std::string seconds_text(double value) { return std::isfinite(value) ? unit_text(value, Unit::seconds) : "-"; }

void latency_rows(Table& table, const SimSummary& s) {
  const auto row = [&](const char* name, const Spread& x) {
    if (x.count == 0) return;
    table.row({name, seconds_text(x.mean), seconds_text(x.p50), seconds_text(x.p90), seconds_text(x.p95),
               seconds_text(x.p99), seconds_text(x.max)});
  };
  row("TTFT", s.ttft);
  row("TPOT", s.tpot);
  row("waiting", s.queue);
  row("end to end", s.e2e);
}

std::string reasons_text(const SimSummary& s) {
  std::string out;
  for (int i = 0; i < 6; ++i) {
    if (s.by_reason[i] == 0) continue;
    const std::string_view name = i == 5 ? std::string_view("idle") : cache::hit_limit_name(static_cast<cache::HitLimit>(i));
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, format_grouped(s.by_reason[i]));
  }
  return out;
}

std::string tables(const SimSetup& setup, const plan::SimReport& report) {
  const SimSummary& s = report.result.summary;
  std::string out = report.subtitle + "\n";
  out += fmt::format("{} of {} requests done in {}{}{}{}{}\n\n", format_grouped(s.done), format_grouped(s.requests),
                     format_seconds(s.seconds), s.cut > 0 ? fmt::format(", {} cut short", format_grouped(s.cut)) : "",
                     s.refused > 0 ? fmt::format(", {} refused", format_grouped(s.refused)) : "",
                     s.not_sent > 0 ? fmt::format(", {} not sent", format_grouped(s.not_sent)) : "",
                     s.lost > 0 ? fmt::format(", {} lost", format_grouped(s.lost)) : "");
  Table latency({"", "mean", "p50", "p90", "p95", "p99", "max"});
  latency_rows(latency, s);
  out += latency.text() + "\n";
  const double output = s.output_per_second();
  out += fmt::format("prompts      {} tokens, {:.2f} % skipped ({:.2f} % matched)\n", format_grouped(s.prompt_tokens),
                     100 * s.hit_ratio(), 100 * s.matched_ratio());
  out += fmt::format(
      "output       {} tokens, {} a second{}\n", format_grouped(s.generated_tokens), unit_text(output, Unit::count),
      setup.gpus > 0 ? fmt::format(", {} a second and GPU", unit_text(output / static_cast<double>(setup.gpus), Unit::count))
                     : "");
  out += fmt::format("cut by       {}\n", reasons_text(s));
  out += fmt::format("checkpoints  {} at most, {}\n", format_grouped(s.most_checkpoints),
                     unit_text(s.checkpoint_bytes, Unit::bytes));
  out += fmt::format("evicted      {} pages, {} checkpoints; {} preemptions\n", format_grouped(s.cache.evicted_pages),
                     format_grouped(s.cache.evicted_checkpoints), format_grouped(s.preemptions));
  if (s.fetched_bytes > 0)
    out += fmt::format("fetched      {} from tiers\n", unit_text(static_cast<double>(s.fetched_bytes), Unit::bytes));
  if (s.restarts > 0)
    out += fmt::format("restarts     {}, {} tokens lost\n", format_grouped(s.restarts), format_grouped(s.lost_tokens));
  if (report.scenario.slo_ttft_seconds > 0 || report.scenario.slo_tpot_seconds > 0) {
    out += fmt::format("objective    {} of {} requests, {:.3g} a second\n", format_grouped(s.within_slo),
                       format_grouped(s.requests), s.goodput_per_second());
  }
  if (!report.policies.empty()) {
    Table policies({"policy", "skipped", "checkpoints", "bytes", "TTFT p50", "TTFT p95", "TPOT p50"});
    for (const plan::PolicyPoint& p : report.policies) {
      policies.row({p.policy, fmt::format("{:.2f} %", 100 * p.summary.hit_ratio()),
                    format_grouped(p.summary.most_checkpoints), unit_text(p.summary.checkpoint_bytes, Unit::bytes),
                    seconds_text(p.summary.ttft.p50), seconds_text(p.summary.ttft.p95), seconds_text(p.summary.tpot.p50)});
    }
    out += "\n" + policies.text();
  }
  if (!report.loads.empty()) {
    Table loads({"load", "output/s", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "skipped"});
    for (const plan::LoadPoint& p : report.loads) {
      loads.row({p.load, unit_text(p.summary.output_per_second(), Unit::count), seconds_text(p.summary.ttft.p50),
                 seconds_text(p.summary.ttft.p95), seconds_text(p.summary.tpot.p50), seconds_text(p.summary.tpot.p95),
                 fmt::format("{:.2f} %", 100 * p.summary.hit_ratio())});
    }
    out += "\n" + loads.text();
  }
  if (report.against) {
    const auto both = plan::against_table(plan::digest_of(report), *report.against);
    Table table({"against", "this run", "the other", "ratio"});
    for (const auto& row : both.rows) table.row(row);
    out += "\n" + table.text();
  }
  return out;
}

// The options of another load: of the same kind as the one that was asked for.
struct Load {
  std::string name;
  SimOptions options;
};

Result<std::vector<Load>> loads_of(const SimOptions& o) {
  std::vector<Load> out;
  if (o.loads.empty()) return out;
  if (o.sequential || o.rule || !o.recorded.empty() || !o.recorded_order.empty()) {
    return fail(
        Code::invalid_argument,
        "--loads: one at a time and recorded requests have no load to change; give --users or --rate, or a trace's clock");
  }
  const bool users = o.users || (!o.rate && o.trace == kSynthetic);
  for (size_t at = 0; at <= o.loads.size();) {
    const size_t comma = std::min(o.loads.find(',', at), o.loads.size());
    const std::string text = o.loads.substr(at, comma - at);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = error == std::errc() && end == text.data() + text.size() && value >= 1e-3 && value <= 1e6;
    if (!number || (users && value != std::floor(value))) {
      return fail(Code::invalid_argument, "--loads: '{}' is no {} up to a million", utf8_repair(text),
                  users ? "number of users" : "load from 0.001");
    }
    Load& load = out.emplace_back(Load{"", o});
    if (users) {
      load.options.users = static_cast<int64_t>(value);
      load.name = fmt::format("{} user{}", *load.options.users, *load.options.users == 1 ? "" : "s");
    } else if (o.rate) {
      load.options.rate = value;
      load.name = fmt::format("{}/s", value);
    } else {
      load.options.speed = value;
      load.name = fmt::format("speed {}", value);
    }
    at = comma + 1;
  }
  if (out.size() > kMostLoads)
    return fail(Code::invalid_argument, "--loads: {} of them; at most {}", out.size(), kMostLoads);
  return out;
}

Result<plan::SimResult> run_one(const SimSetup& setup, const char* what) {
  Progress bar(what, 1000, "");
  auto result =
      plan::simulate(setup.scenario, setup.workload, [&](double share) { bar.update(static_cast<int64_t>(1000 * share)); });
  bar.finish();
  if (result.ok() || result.error().code != Code::exhausted) return result;
  return std::move(result).take_error().with_context(
      "pools and tiers, of --pool-bytes, --host-bytes and --remote-bytes (this program counts each page)");
}

Status write_files(const SimOptions& o, const plan::SimReport& report) {
  if (!o.json.empty() && o.json != "-") K3_TRY(write_file(o.json, plan::sim_json(report)));
  if (!o.csv.empty()) K3_TRY(write_file(o.csv, plan::sim_csv(report)));
  if (!o.html.empty()) K3_TRY(write_file(o.html, plan::sim_html(report)));
  if (!o.plots.empty()) {
    K3_TRY(make_directories(o.plots));
    for (const plan::SvgFile& file : plan::sim_svgs(report)) K3_TRY(write_file(o.plots + "/" + file.name, file.text));
  }
  for (const std::string& file : {o.json, o.csv, o.html, o.plots}) {
    if (!file.empty() && file != "-") note("k3: wrote " + file);
  }
  return {};
}

// Of a run in which nothing was answered.
std::string why_none(const plan::SimScenario& scenario, const plan::SimResult& result) {
  if (!result.first_refusal.empty()) return result.first_refusal;
  if (!result.loss.empty()) return result.loss;
  if (!scenario.recorded.empty()) return "the recording starts none of the trace, or none within --duration";
  return "none starts within --duration";
}

}  // namespace

Status sim_command(const SimOptions& o) {
  K3_TRY(check_outputs(o));
  std::optional<plan::SimDigest> against;
  if (!o.against.empty()) {
    K3_TRY_ASSIGN(const std::string text, read_file(o.against, kMostOtherBytes));
    K3_TRY_ASSIGN(against, plan::parse_other(text).with_context(o.against));
  }
  K3_TRY_ASSIGN(SimSetup setup, sim_setup(o));
  std::vector<std::string> names;
  if (!o.policies.empty()) {
    K3_TRY_ASSIGN(names, plan::policy_names(o.policies, setup.scenario.engine.core.block_tokens));
  }
  std::vector<plan::PolicyPoint> policies;
  for (const std::string& name : names) {
    SimOptions other = o;
    other.policy = name;
    K3_TRY_ASSIGN(const SimSetup one, sim_setup(other));
    K3_TRY_ASSIGN(const plan::SimResult result, run_one(one, name.c_str()));
    policies.push_back({name, result.summary});
  }
  K3_TRY_ASSIGN(const std::vector<Load> others, loads_of(o));
  std::vector<plan::LoadPoint> loads;
  for (const Load& load : others) {
    K3_TRY_ASSIGN(const SimSetup one, sim_setup(load.options));
    K3_TRY_ASSIGN(const plan::SimResult result, run_one(one, load.name.c_str()));
    loads.push_back({load.name, result.summary});
  }
  K3_TRY_ASSIGN(const plan::SimResult result, run_one(setup, "simulation"));
  const plan::SimReport report{fmt::format("Simulation: {}", setup.scenario.name),
                               setup.subtitle,
                               setup.settings,
                               setup.scenario,
                               setup.workload,
                               result,
                               setup.gpus,
                               std::move(policies),
                               std::move(loads),
                               std::move(against)};
  print_out(o.json == "-" ? plan::sim_json(report) + "\n" : tables(setup, report));
  for (const std::string& text : setup.notes) note("k3: " + text);
  if (!setup.clock_note.empty()) note("k3: clock: " + setup.clock_note);
  if (!result.first_refusal.empty()) note("k3: refused: " + result.first_refusal);
  if (!result.loss.empty()) note("k3: lost: " + result.loss);
  if (report.against && report.against->requests != result.summary.requests) {
    note(fmt::format("k3: --against {}: a run of {} requests, this one has {}: they answer different questions", o.against,
                     format_grouped(report.against->requests), format_grouped(result.summary.requests)));
  }
  K3_TRY(write_files(o, report));
  if (result.summary.done + result.summary.cut == 0)
    return fail(Code::invalid_argument, "no request was answered; {}", why_none(setup.scenario, result));
  return {};
}

}  // namespace k3::cli
