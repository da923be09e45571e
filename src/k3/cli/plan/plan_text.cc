#include "k3/cli/plan/plan_text.h"

#include <algorithm>
#include <cmath>

#include "k3/base/report/axis.h"
#include "k3/base/units.h"
#include "k3/base/utf8.h"
#include "k3/cli/common.h"
#include "k3/plan/cost/prefix.h"
#include "k3/plan/cost/speculation.h"

namespace k3::cli {
namespace {

using plan::LayoutAnswer;
using plan::Scenario;
using plan::UserPoint;
using report::unit_text;

std::string time(double seconds) { return unit_text(seconds, Unit::seconds); }
std::string gigabytes(double bytes) { return fmt::format("{:.1f} GB", bytes / 1e9); }
std::string count(double value) {
  return value >= 100 ? format_grouped(std::llround(value)) : value >= 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}
std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }
std::string signed_percent(double share) { return fmt::format("{:+.1f} %", 100 * share); }
std::string whole_percent(double share) { return fmt::format("{:+} %", std::lround(100 * share)); }

// A table whose text columns are set left.
std::string columns(const std::vector<std::vector<std::string>>& rows, const std::vector<size_t>& left) {
  std::vector<size_t> widths;
  const auto width = [](const std::string& text) { return static_cast<size_t>(utf8_length(text)); };
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  }
  std::string out;
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - width(row[c]), ' ');
      const bool is_left = std::find(left.begin(), left.end(), c) != left.end();
      out += (c > 0 ? "  " : "") + (is_left ? row[c] + pad : pad + row[c]);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

void line(std::string& out, std::string_view name, std::string_view value) { out += fmt::format("{:<13}{}\n", name, value); }

// Lengths at which capacity is told: the request's own and the usual ones.
std::vector<int64_t> told_lengths(const Scenario& s) {
  std::vector<int64_t> lengths = {s.load.total_tokens()};
  for (const int64_t tokens : {int64_t{8192}, int64_t{32768}, int64_t{131072}, int64_t{1048576}}) {
    if (tokens > lengths.back()) lengths.push_back(tokens);
  }
  return lengths;
}

std::string users_text(const Scenario& s, const LayoutAnswer& chosen) {
  std::string text;
  for (const int64_t tokens : told_lengths(s)) {
    const plan::Capacity c = capacity(deployment_of(s, chosen.layout), static_cast<double>(tokens), slots_of(s));
    text += fmt::format("{}{} at {}", text.empty() ? "" : ", ", format_grouped(c.requests), format_grouped(tokens));
  }
  return text + fmt::format(" tokens; one alone up to {}", format_grouped(static_cast<int64_t>(chosen.capacity.tokens_if_one)));
}

std::string load_text(const PlanSetup& setup, const LayoutAnswer& chosen) {
  const Scenario& s = setup.scenario;
  const UserPoint& p = *chosen.point;
  std::string text = fmt::format("{} user{}, {} + {} tokens", format_grouped(p.users), p.users == 1 ? "" : "s", format_grouped(s.load.input_tokens),
                                 format_grouped(s.load.output_tokens));
  if (s.load.hit > 0) text += fmt::format(", {} of the prompt from the prefix cache", percent(s.load.hit));
  if (s.draft.tokens > 0) {
    text += fmt::format(", {} drafted ({}: {:.2f} tokens a step)", s.draft.tokens, s.draft.acceptance.name,
                        s.draft.acceptance.at(s.draft.tokens, s.load.mean_context()));
  }
  const std::string objective = objective_text(s.objective);
  if (objective.empty()) return text;
  if (!p.meets) return text + ": " + objective + " is NOT met";
  if (s.load.users > 0) return text + ": " + objective + " is met";
  return text + fmt::format(": the most with {}{}", objective, setup.default_objective ? " (the default)" : "");
}

std::string latency_table(const Scenario& s, const UserPoint& p) {
  Table table({"", "p50", "band", "p95", "band"});
  table.row({"TTFT", time(p.ttft_p50), band_text(s.band, p.ttft_p50), time(p.ttft_p95), band_text(s.band, p.ttft_p95)});
  table.row({"TPOT", time(p.tpot_p50), band_text(s.band, p.tpot_p50), time(p.tpot_p95), band_text(s.band, p.tpot_p95)});
  return table.text();
}

std::string price(double value) { return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.2f}", value); }

std::string throughput_text(const Scenario& s, const UserPoint& p) {
  std::string text = fmt::format("{} tokens/s/GPU in and out, {} out; {} tokens/s for each user", count(p.tokens_per_second_gpu),
                                 count(p.output_per_second_gpu), count(p.user_tokens_per_second()));
  if (s.gpu_hour > 0) {
    text += fmt::format("\n{:<13}{} for a million tokens in and out, {} for a million out, at {} a GPU hour", "cost", price(p.cost_per_million),
                        price(p.cost_per_million_output), s.gpu_hour);
  }
  return text;
}

std::string binding_text(const plan::Binding& binding) {
  return fmt::format("{} ({} of it, {})", binding.what, percent(binding.share),
                     binding.what == "communication" || binding.what == "kernel launches" ? "latency and links"
                     : binding.memory_bound                                               ? "memory's rate"
                                                                                         : "arithmetic");
}

std::string ladder_text(const Scenario& s, const LayoutAnswer& chosen) {
  std::vector<std::string> header = {"users", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "step", "tokens/s/user", "tokens/s/GPU"};
  if (s.gpu_hour > 0) header.push_back("cost/M");
  header.push_back("");
  Table table(header);
  for (const UserPoint& p : chosen.ladder) {
    std::vector<std::string> row = {format_grouped(p.users), time(p.ttft_p50), time(p.ttft_p95), time(p.tpot_p50), time(p.tpot_p95),
                                    time(p.step_seconds),    count(p.user_tokens_per_second()), count(p.tokens_per_second_gpu)};
    if (s.gpu_hour > 0) row.push_back(price(p.cost_per_million));
    row.emplace_back(p.meets ? "" : "misses");
    table.row(std::move(row));
  }
  return table.text();
}

std::string_view effort_text(plan::Effort effort) {
  switch (effort) {
    case plan::Effort::layout: return "layout";
    case plan::Effort::engine: return "engine";
    case plan::Effort::numerics: return "numerics";
    case plan::Effort::draft: return "draft model";
    case plan::Effort::more_gpus: return "more GPUs";
    case plan::Effort::other_gpus: break;
  }
  return "other GPUs";
}

std::string changes_text(const Scenario& s, const LayoutAnswer& chosen) {
  const std::vector<plan::Change> changes = next_changes(s, chosen);
  if (changes.empty()) return "\nnext: nothing that the planner knows gains 3 %\n";
  std::vector<std::vector<std::string>> rows = {{"next change", "effort", "layout", "users", "TPOT p50", "tokens/s/GPU", "gain", ""}};
  for (const plan::Change& change : changes) {
    const UserPoint& p = *change.answer.point;
    rows.push_back({change.what, std::string(effort_text(change.effort)), layout_text(change.answer.layout), format_grouped(p.users), time(p.tpot_p50),
                    count(p.tokens_per_second_gpu), whole_percent(p.tokens_per_second_gpu / chosen.point->tokens_per_second_gpu - 1),
                    change.meets && !chosen.point->meets ? "meets the objective" : ""});
  }
  return "\n" + columns(rows, {0, 1, 2, 7});
}

std::string prefix_text(const Scenario& s, const LayoutAnswer& chosen) {
  using plan::PrefixPlace;
  const plan::Deployment d = deployment_of(s, chosen.layout);
  const int64_t prefix = s.load.hit > 0 ? s.load.hit_tokens() : s.load.input_tokens;
  std::string saved, least;
  for (const auto& [place, name] : {std::pair(PrefixPlace::hbm, "GPU"), std::pair(PrefixPlace::host, "host"), std::pair(PrefixPlace::network, "network")}) {
    const plan::PrefixBenefit b = prefix_benefit(d, place, prefix, 1024);
    saved += fmt::format("{}{} from the {}", saved.empty() ? "" : ", ", time(b.saved_seconds), name);
    least += (least.empty() ? "" : ", ") + format_grouped(std::max<int64_t>(1, static_cast<int64_t>(std::ceil(b.break_even_tokens))));
  }
  return fmt::format("{} reused tokens save {}\n{:<13}they pay from {} tokens on; a checkpoint is {}", format_grouped(prefix), saved, "", least,
                     format_bytes(static_cast<int64_t>(fixed_bytes(s.counts, s.precision))));
}

std::string draft_text(const Scenario& s, const LayoutAnswer& chosen) {
  Scenario plain = s;
  plain.draft.tokens = 0;
  const double without = decode_of(plain, chosen.layout, chosen.point->users).seconds, with = chosen.point->step_seconds;
  const double accepted = s.draft.acceptance.at(s.draft.tokens, s.load.mean_context());
  const plan::BreakEven even = plan::break_even(without, with, s.draft.tokens);
  std::string text = fmt::format("a step of {} instead of {}, {:.2f} tokens in it: {:.2f} times as fast; pays from {:.2f} tokens a step", time(with),
                                 time(without), accepted, accepted * without / with, even.tokens_per_step);
  text += even.alpha ? fmt::format(" (a drafted token accepted with {})", percent(*even.alpha)) : " (more than can be accepted)";
  return text;
}

}  // namespace

std::string machines_text(const Scenario& s) { return fmt::format("{} {}", s.gpus, s.machine.hw.name); }

std::string objective_text(const plan::Objective& objective) {
  std::string text;
  if (objective.ttft_seconds < plan::kNoLimit) text += "TTFT p95 at most " + time(objective.ttft_seconds);
  if (objective.tpot_seconds < plan::kNoLimit) text += (text.empty() ? "" : " and ") + std::string("TPOT p95 at most ") + time(objective.tpot_seconds);
  return text;
}

std::string band_text(const plan::Band& band, double seconds) {
  return time(seconds * band.low) + " to " + time(seconds * band.high);
}

std::string answer_text(const PlanSetup& setup, const plan::Answer& answer) {
  const Scenario& s = setup.scenario;
  const LayoutAnswer& chosen = answer.layouts[*answer.best];
  size_t fitting = 0;
  for (const LayoutAnswer& layout : answer.layouts) fitting += layout.ladder.empty() ? 0 : 1;
  std::string out = fmt::format("{} on {}: {}{}\n\n", s.model, machines_text(s), layout_text(chosen.layout),
                                answer.layouts.size() > 1 ? fmt::format("  (best of {} layouts, {} of them fit)", answer.layouts.size(), fitting) : "");
  const plan::Capacity& c = chosen.capacity;
  line(out, "fits", fmt::format("yes{}: of {} on each GPU {} are weights, {} free for histories", setup.gpus_chosen ? ", and no fewer do" : "",
                                gigabytes(c.memory_bytes), gigabytes(c.weights_bytes), gigabytes(c.free_bytes)));
  line(out, "users", users_text(s, chosen));
  if (!chosen.point) {
    line(out, "load", fmt::format("{} users do not fit at {} tokens: {} do", format_grouped(s.load.users), format_grouped(s.load.total_tokens()),
                                  format_grouped(c.requests)));
    return out + "\n" + ladder_text(s, chosen);
  }
  const UserPoint& p = *chosen.point;
  line(out, "load", load_text(setup, chosen));
  out += "\n" + latency_table(s, p) + "\n";
  line(out, "throughput", throughput_text(s, p));
  const plan::Bindings b = bindings_of(s, chosen);
  line(out, "binds", fmt::format("decode: {}; prefill: {}", binding_text(b.decode), binding_text(b.prefill)));
  line(out, "", fmt::format("prefills are {} of the time{}", percent(p.prefill_share), b.memory_stops_users ? "; memory stops further users" : ""));
  if (s.draft.tokens > 0) line(out, "speculation", draft_text(s, chosen));
  line(out, "prefix cache", prefix_text(s, chosen));
  out += "\n" + ladder_text(s, chosen);
  out += changes_text(s, chosen);
  return out + fmt::format("\nband: {:.2f} to {:.2f} times the model's time: {}\n", s.band.low, s.band.high, s.band.source);
}

std::string missing_text(const PlanSetup& setup, const plan::Missing& m) {
  const Scenario& s = setup.scenario;
  const plan::Capacity& c = m.capacity;
  std::string out = fmt::format("{} on {}: does not fit\n\n", s.model, machines_text(s));
  line(out, "missing", fmt::format("{} on each GPU, with {}", gigabytes(m.bytes), layout_text(m.layout)));
  const auto wanted = static_cast<double>(std::max<int64_t>(1, s.load.users));
  const double requests = std::ceil(wanted / static_cast<double>(m.layout.dp));
  line(out, "", fmt::format("{} weights + {} for {} request{} of {} tokens + {} workspaces + {} reserve, of {}", gigabytes(c.weights_bytes),
                            gigabytes(c.per_request_bytes * requests), requests, requests == 1 ? "" : "s", format_grouped(s.load.total_tokens()),
                            gigabytes(c.extra_bytes), gigabytes(c.reserved_bytes), gigabytes(c.memory_bytes)));
  if (m.nearest.empty()) {
    line(out, "nearest", "nothing that the planner knows fits");
    return out;
  }
  std::string text;
  for (const plan::Nearest& near : m.nearest) {
    text += fmt::format("{}{}: {}, {} requests of {} tokens", text.empty() ? "" : fmt::format("\n{:<13}", ""), near.what,
                        layout_text(near.answer.layout), format_grouped(near.answer.capacity.requests), format_grouped(s.load.total_tokens()));
  }
  line(out, "nearest", text);
  return out;
}

std::string sweep_text(const PlanSetup& setup, const plan::Answer& answer) {
  const Scenario& s = setup.scenario;
  std::vector<std::string> header = {"layout", "users", "TTFT p95", "TPOT p50", "TPOT p95", "tokens/s/user", "tokens/s/GPU"};
  if (s.gpu_hour > 0) header.push_back("cost/M");
  header.push_back("");
  Table table(header);
  for (const plan::FrontierPoint& f : frontier(answer)) {
    const UserPoint& p = f.point;
    std::vector<std::string> row = {layout_text(f.layout), format_grouped(p.users), time(p.ttft_p95), time(p.tpot_p50), time(p.tpot_p95),
                                    count(p.user_tokens_per_second()), count(p.tokens_per_second_gpu)};
    if (s.gpu_hour > 0) row.push_back(price(p.cost_per_million));
    row.emplace_back(p.meets ? "" : "misses");
    table.row(std::move(row));
  }
  return fmt::format("\nfrontier of {} layouts: nothing else has both faster users and more tokens/s/GPU\n{}", answer.layouts.size(), table.text());
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
      const auto roof = [&](double amount, double rate) { return p.seconds > 0 && amount > 0 ? percent(amount / p.seconds / rate) : std::string(); };
      table.row({std::string(plan::part_text(named.name)), fmt::format("{:.3f}", p.seconds * 1e3), percent(p.seconds / whole),
                 p.bytes > 0 ? fmt::format("{:.1f}", p.bytes / 1e6) : "", p.flops > 0 ? fmt::format("{:.1f}", p.flops / 1e9) : "",
                 moved ? "" : roof(p.bytes, hw.hbm_bytes_per_second), roof(p.flops, hw.bf16_flops_per_second)});
    }
    return table.text();
  };
  const plan::DecodeStep step = decode_of(s, chosen.layout, users);
  std::string out = fmt::format("\na decode step of {} user{} at {} tokens, on the busiest GPU of a stage: {} requests, {} rows, {:.0f} experts touched\n", users,
                                users == 1 ? "" : "s", format_grouped(static_cast<int64_t>(s.load.mean_context())), step.group_requests, step.rows,
                                step.distinct_experts);
  out += parts_table(step.parts(), step.stage_seconds);
  out += fmt::format("stage {}", time(step.stage_seconds));
  if (chosen.layout.pp > 1) out += fmt::format(" x {} + {} hops of {}", chosen.layout.pp, chosen.layout.pp - 1, time(step.hop_seconds));
  out += fmt::format(" + host {}", time(step.host_seconds));
  if (step.draft_seconds > 0) out += fmt::format(" + draft {}", time(step.draft_seconds));
  out += fmt::format(" = {}\n", time(step.seconds));
  const int64_t requests = prefill_batch_requests(s, chosen.layout, users);
  const plan::PrefillTime prefill = prefill_of(s, chosen.layout, requests);
  out += fmt::format("\na prefill of {} x {} tokens{}, on a GPU of a stage\n", requests, format_grouped(s.load.new_tokens()),
                     s.load.hit_tokens() > 0 ? fmt::format(" after {} reused ones", format_grouped(s.load.hit_tokens())) : "");
  out += parts_table(prefill.parts(), prefill.seconds);
  out += fmt::format("{} at the steady rate, {} for 1,000 tokens; {} until the last stage is done\n", time(prefill.seconds),
                     time(prefill.seconds_per_1k_tokens()), time(prefill.latency_seconds));
  return out;
}

std::string against_text(const PlanSetup& first, const plan::Answer& first_answer, const PlanSetup& second, const plan::Answer& second_answer) {
  Table table({"", machines_text(first.scenario), machines_text(second.scenario), "change"});
  const auto chosen = [](const plan::Answer& answer) -> const LayoutAnswer* { return answer.best ? &answer.layouts[*answer.best] : nullptr; };
  const LayoutAnswer *a = chosen(first_answer), *b = chosen(second_answer);
  const auto text = [](const LayoutAnswer* of, const auto& what) { return of == nullptr ? std::string("does not fit") : what(*of); };
  const auto row = [&](const char* name, const auto& value, const auto& print) {
    const bool both = a != nullptr && b != nullptr && a->point && b->point;
    const auto cell = [&](const LayoutAnswer* of) { return text(of, [&](const LayoutAnswer& l) { return l.point ? print(value(l)) : std::string("too many users"); }); };
    table.row({name, cell(a), cell(b), both ? signed_percent(value(*b) / value(*a) - 1) : ""});
  };
  table.row({"layout", text(a, [](const LayoutAnswer& l) { return layout_text(l.layout); }), text(b, [](const LayoutAnswer& l) { return layout_text(l.layout); }), ""});
  const auto grouped = [](double v) { return format_grouped(std::llround(v)); };
  row("users that fit", [](const LayoutAnswer& l) { return static_cast<double>(l.capacity.requests); }, grouped);
  row("users", [](const LayoutAnswer& l) { return static_cast<double>(l.point->users); }, grouped);
  row("TTFT p50", [](const LayoutAnswer& l) { return l.point->ttft_p50; }, time);
  row("TTFT p95", [](const LayoutAnswer& l) { return l.point->ttft_p95; }, time);
  row("TPOT p50", [](const LayoutAnswer& l) { return l.point->tpot_p50; }, time);
  row("TPOT p95", [](const LayoutAnswer& l) { return l.point->tpot_p95; }, time);
  row("output tokens/s", [](const LayoutAnswer& l) { return l.point->output_per_second; }, count);
  row("tokens/s/GPU", [](const LayoutAnswer& l) { return l.point->tokens_per_second_gpu; }, count);
  if (first.scenario.gpu_hour > 0 && second.scenario.gpu_hour > 0) {
    row("cost of a million tokens", [](const LayoutAnswer& l) { return l.point->cost_per_million; }, price);
  }
  return "\n" + table.text();
}

std::string calibration_text(const plan::Calibration& c) {
  std::string out = "\ncalibration\n";
  std::vector<std::vector<std::string>> points = {{"measured", "time", "model before", "after", "error", "unseen", "it moved"}};
  for (const plan::CalibrationRow& row : c.rows) {
    const double seconds = row.point.seconds;
    points.push_back({row.point.name, time(seconds), time(row.before), time(row.after), signed_percent(row.after / seconds - 1), signed_percent(row.unseen / seconds - 1),
                row.moved.empty() ? "nothing" : fmt::format("{} x {:.2f}", row.moved, row.moved_by)});
  }
  Table factors({"constant", "before", "after", "factor"});
  for (const plan::CalibrationFactor& f : c.factors) {
    factors.row({f.constant, fmt::format("{:.4g}", f.before), fmt::format("{:.4g}", f.after), fmt::format("{:.2f}", f.after / f.before)});
  }
  return out + columns(points, {0, 6}) + "unseen: by a fit without that point; it makes the band\n\n" + factors.text();
}

std::string check_text(const plan::Check& check) {
  std::vector<std::vector<std::string>> rows = {{"measurement", "measured", "model", "error", "source", ""}};
  for (const plan::CheckRow& row : check.rows) {
    const plan::Measurement& m = row.measurement;
    const auto value = [&](double v) { return is_time(m.quantity) ? time(v) : count(v); };
    std::string why = m.fitted ? "fitted" : "";
    if (!m.assumed.empty()) why += (why.empty() ? "" : "; ") + std::string("not published: ") + m.assumed;
    if (!m.note.empty()) why += (why.empty() ? "" : "; ") + m.note;
    rows.push_back({m.name, value(m.measured), value(row.predicted), signed_percent(row.error), m.source, why});
  }
  const auto summary = [](std::string_view name, const plan::ErrorSummary& s) {
    return fmt::format("{:<38}{:>3} rows  mean |error| {:>5.1f} %  median {:>5.1f} %  from {:+.1f} to {:+.1f} %\n", name, s.rows, 100 * s.mean, 100 * s.median,
                       100 * s.lowest, 100 * s.highest);
  };
  std::string out = columns(rows, {0, 4, 5}) + "\n";
  out += summary("scored (all inputs published)", check.scored);
  out += summary("all out of sample, inputs assumed", check.out_of_sample);
  out += summary("fitted (tests nothing)", check.fitted);
  out += fmt::format("\nscored rows took {:.2f} to {:.2f} times the model's time; the middle 80 % of them {:.2f} to {:.2f}: the band that k3 plan prints\n",
                     check.scored.covers.low, check.scored.covers.high, check.scored.most.low, check.scored.most.high);
  return out + "error: (model - measured) / measured. Rows with unpublished inputs or fitted constants are shown, not scored.\n";
}

std::string cells_text(const plan::Machine& machine) {
  std::vector<std::vector<std::string>> rows = {{"cell", "value", "least", "most", "meaning"}};
  for (const plan::CellInfo& cell : cells(machine)) {
    rows.push_back({cell.name, fmt::format("{:.6g}", cell.value), fmt::format("{:g}", cell.least), fmt::format("{:g}", cell.most), std::string(cell.about)});
  }
  return machine.hw.name + "\n" + columns(rows, {0, 4});
}

}  // namespace k3::cli
