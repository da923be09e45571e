#include "k3/cli/plan/plan_text.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "k3/base/units.h"
#include "k3/cli/common.h"
#include "k3/cli/plan/plan_words.h"
#include "k3/plan/cost/prefix.h"
#include "k3/plan/cost/speculation.h"

namespace k3::cli {

using namespace words;

namespace {

using plan::LayoutAnswer;
using plan::Scenario;
using plan::UserPoint;

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
  return text +
         fmt::format(" tokens; one alone up to {}", format_grouped(static_cast<int64_t>(chosen.capacity.tokens_if_one)));
}

std::string load_text(const PlanSetup& setup, const LayoutAnswer& chosen) {
  const Scenario& s = setup.scenario;
  const UserPoint& p = *chosen.point;
  std::string text = fmt::format("{}, {} + {} tokens", plural(p.users, "user"), format_grouped(s.load.input_tokens),
                                 format_grouped(s.load.output_tokens));
  if (s.load.hit > 0) text += fmt::format(", {} of the prompt from the prefix cache", percent(s.load.hit));
  if (s.draft.tokens > 0) {
    text += fmt::format(", {} drafted ({}: {:.2f} tokens a step)", s.draft.tokens, s.draft.acceptance.name,
                        s.draft.acceptance.at(s.draft.tokens, s.load.mean_context()));
  }
  const std::string objective = objective_text(s.objective);
  if (objective.empty()) return s.load.users > 0 ? text : text + ": all that fit";
  if (!p.meets) return text + ": " + objective + " is NOT met";
  if (s.load.users > 0) return text + ": " + objective + " is met";
  return text + fmt::format(": the most with {}{}", objective, setup.default_objective ? " (the default)" : "");
}

std::string latency_table(const Scenario& s, const UserPoint& p) {
  Table table({"", "p50", "band", "p95", "band"});
  table.row({"TTFT", time(p.ttft_p50), band_text(s.band, p.ttft_p50), time(p.ttft_p95), band_text(s.band, p.ttft_p95)});
  if (s.load.output_tokens > 1)
    table.row({"TPOT", time(p.tpot_p50), band_text(s.band, p.tpot_p50), time(p.tpot_p95), band_text(s.band, p.tpot_p95)});
  return table.text();
}

std::string throughput_text(const Scenario& s, const UserPoint& p) {
  std::string text =
      fmt::format("{} tokens/s/GPU in and out, {} out", count(p.tokens_per_second_gpu), count(p.output_per_second_gpu));
  if (s.load.output_tokens > 1) text += fmt::format("; {} tokens/s for each user", count(p.user_tokens_per_second()));
  if (s.gpu_hour > 0) {
    text += fmt::format("\n{:<13}{} for a million tokens in and out, {} for a million out, at {} a GPU hour", "cost",
                        price(p.cost_per_million), price(p.cost_per_million_output), s.gpu_hour);
  } else {
    text += fmt::format("\n{:<13}{} GPU hours for a million tokens in and out, {} for a million out (--gpu-hour X: in money)", "cost",
                        price(p.gpu_hours_per_million()), price(p.gpu_hours_per_million_output()));
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
  std::vector<std::string> header = {"users", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "step"};
  std::ranges::move(rates_header(s), std::back_inserter(header));
  Table table(std::move(header));
  for (const UserPoint& p : chosen.ladder) {
    std::vector<std::string> row = {format_grouped(p.users),
                                    time(p.ttft_p50),
                                    time(p.ttft_p95),
                                    tpot(p.tpot_p50),
                                    tpot(p.tpot_p95),
                                    time(p.step_seconds)};
    std::ranges::move(rates_of(s, p), std::back_inserter(row));
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
  const char* const gain = s.load.users > 0 ? "tokens/s in all" : "gain";  // as next_changes() counts it
  std::vector<std::vector<std::string>> rows = {
      {"next change", "effort", "layout", "users", "TPOT p50", "tokens/s/GPU", gain, ""}};
  for (const plan::Change& change : changes) {
    const UserPoint& p = *change.answer.point;
    rows.push_back({change.what, std::string(effort_text(change.effort)), layout_text(change.answer.layout),
                    format_grouped(p.users), tpot(p.tpot_p50), count(p.tokens_per_second_gpu),
                    whole_percent(change.gain - 1), change.meets && !chosen.point->meets ? "meets the objective" : ""});
  }
  return "\n" + columns(rows, {0, 1, 2, 7});
}

std::string prefix_text(const Scenario& s, const LayoutAnswer& chosen) {
  using plan::PrefixPlace;
  const plan::Deployment d = deployment_of(s, chosen.layout);
  const int64_t prefix = s.load.hit > 0 ? s.load.hit_tokens() : s.load.input_tokens;
  std::string saved, least;
  for (const auto& [place, name] : {std::pair(PrefixPlace::hbm, "GPU"), std::pair(PrefixPlace::host, "host"),
                                    std::pair(PrefixPlace::network, "network")}) {
    const plan::PrefixBenefit b = prefix_benefit(d, place, prefix, 1024);
    saved += fmt::format("{}{} from the {}", saved.empty() ? "" : ", ", time(b.saved_seconds), name);
    least += (least.empty() ? "" : ", ") +
             format_grouped(std::max<int64_t>(1, static_cast<int64_t>(std::ceil(b.break_even_tokens))));
  }
  return fmt::format("{} reused tokens save {}\n{:<13}they pay from {} tokens on; a checkpoint is {}",
                     format_grouped(prefix), saved, "", least,
                     format_bytes(static_cast<int64_t>(fixed_bytes(s.counts, s.precision))));
}

// What does hold the users asked for.
std::string nearest_text(const Scenario& s, const plan::Missing& m) {
  if (m.nearest.empty()) return "nothing that the planner knows fits";
  std::string text;
  for (const plan::Nearest& near : m.nearest) {
    text += fmt::format("{}{}: {}, {} of {} tokens", text.empty() ? "" : fmt::format("\n{:<13}", ""), near.what,
                        layout_text(near.answer.layout), plural(near.answer.capacity.requests, "request"),
                        format_grouped(s.load.total_tokens()));
  }
  return text;
}

std::string draft_text(const Scenario& s, const LayoutAnswer& chosen) {
  const plan::DraftEffect e = draft_effect(s, chosen.layout, chosen.point->users);
  std::string text = fmt::format(
      "a step of {} instead of {}, {:.2f} tokens in it: {:.2f} times as fast\n{:<13}pays from {:.2f} tokens a step",
      time(e.step_seconds), time(e.plain_step_seconds), e.tokens_per_step, e.speed, "", e.break_even.tokens_per_step);
  text += e.break_even.alpha ? fmt::format(" (a drafted token accepted with {})", percent(*e.break_even.alpha))
                             : " (more than can be accepted)";
  return text;
}

}  // namespace

std::string machines_text(const Scenario& s) { return fmt::format("{} {}", s.gpus, s.machine.hw.name); }

std::string objective_text(const plan::Objective& objective) {
  std::string text;
  if (objective.ttft_seconds < plan::kNoLimit) text += "TTFT p95 at most " + time(objective.ttft_seconds);
  if (objective.tpot_seconds < plan::kNoLimit)
    text += (text.empty() ? "" : " and ") + std::string("TPOT p95 at most ") + time(objective.tpot_seconds);
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
                                answer.layouts.size() > 1
                                    ? fmt::format("  (best of {} layouts, {} of them fit)", answer.layouts.size(), fitting)
                                    : "");
  const plan::Capacity& c = chosen.capacity;
  line(out, "fits",
       fmt::format("yes{}: of {} on each GPU {} are weights, {} free for histories",
                   setup.gpus_chosen ? ", and no fewer do" : "", gigabytes(c.memory_bytes), gigabytes(c.weights_bytes),
                   gigabytes(c.free_bytes)));
  line(out, "users", users_text(s, chosen));
  if (const int64_t most = setup.config.max_position_embeddings; most > 0 && s.load.total_tokens() > most) {
    line(out, "note",
         fmt::format("the model's config ends at {} tokens: nothing says that it works beyond", format_grouped(most)));
  }
  if (!chosen.point) {
    line(out, "load",
         fmt::format("{} do not fit at {} tokens: {} do", plural(s.load.users, "user"),
                     format_grouped(s.load.total_tokens()), format_grouped(c.requests)));
    line(out, "nearest", nearest_text(s, missing_of(s, answer)));
    return out + "\n" + ladder_text(s, chosen);
  }
  const UserPoint& p = *chosen.point;
  line(out, "load", load_text(setup, chosen));
  out += "\n" + latency_table(s, p) + "\n";
  line(out, "throughput", throughput_text(s, p));
  const plan::Bindings b = bindings_of(s, chosen);
  line(out, "binds",
       s.load.output_tokens > 1 ? fmt::format("decode: {}; prefill: {}", binding_text(b.decode), binding_text(b.prefill))
                                : "prefill: " + binding_text(b.prefill));
  line(out, "",
       fmt::format("prefills are {} of the time{}", percent(p.prefill_share),
                   b.memory_stops_users ? "; memory stops further users" : ""));
  if (s.draft.tokens > 0) line(out, "speculation", draft_text(s, chosen));
  line(out, "prefix cache", prefix_text(s, chosen));
  out += "\n" + ladder_text(s, chosen);
  out += changes_text(s, chosen);
  return out + fmt::format("\nband: {} to {} times the model's time: {}\n", plan::multiple_text(s.band.low),
                           plan::multiple_text(s.band.high), s.band.source);
}

std::string missing_text(const PlanSetup& setup, const plan::Missing& m) {
  const Scenario& s = setup.scenario;
  const plan::Capacity& c = m.capacity;
  std::string out = fmt::format("{} on {}: does not fit\n\n", s.model, machines_text(s));
  line(out, "missing", fmt::format("{} on each GPU, with {}", gigabytes(m.bytes), layout_text(m.layout)));
  const auto wanted = static_cast<double>(std::max<int64_t>(1, s.load.users));
  const auto requests = static_cast<int64_t>(std::ceil(wanted / static_cast<double>(m.layout.dp)));
  line(out, "",
       fmt::format("{} weights + {} for {} of {} tokens + {} workspaces + {} reserve, of {}", gigabytes(c.weights_bytes),
                   gigabytes(c.per_request_bytes * static_cast<double>(requests)), plural(requests, "request"),
                   format_grouped(s.load.total_tokens()), gigabytes(c.extra_bytes), gigabytes(c.reserved_bytes),
                   gigabytes(c.memory_bytes)));
  line(out, "nearest", nearest_text(s, m));
  return out;
}

}  // namespace k3::cli
