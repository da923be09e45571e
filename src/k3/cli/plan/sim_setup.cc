#include "k3/cli/plan/sim_setup.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>
#include <utility>

#include "k3/base/file.h"
#include "k3/base/threads.h"
#include "k3/base/units.h"
#include "k3/base/utf8.h"
#include "k3/cli/plan/plan_setup.h"
#include "k3/cli/plan/sim_use.h"
#include "k3/engine/executor.h"
#include "k3/format/trace/trace_fields.h"
#include "k3/plan/advise/answer.h"
#include "k3/plan/cost/memory.h"
#include "k3/plan/sim/cost_clock.h"
#include "k3/plan/sim/fitted_clock.h"
#include "k3/plan/sim/policies.h"
#include "k3/plan/sim/recording.h"

namespace k3::cli {
namespace {

constexpr int64_t kPlannedStepTokens = 8192, kCpuStepTokens = 512, kGpuRunning = 256, kCpuRunning = 32;
constexpr int64_t kLargeState = int64_t{1} << 20;  // as the engine decides how long blocks are
constexpr int64_t kMostRecordingBytes = int64_t{1} << 30;
constexpr int64_t kMostPieces = 100'000'000;  // of prompts made up, 32 bytes each
constexpr double kGiga = 1e9;
// Pages that this program keeps count of, some hundred bytes each: of a pool as machines have them, and of all pools and
// tiers.
constexpr int64_t kUsualPages = int64_t{1} << 20, kMostPages = int64_t{1} << 24;

Result<std::vector<PlannedRequest>> planned_requests(const SimOptions& o) {
  if (o.trace == kSynthetic) {
    if (o.scale != 1 || !o.sessions.empty() || o.limit > 0 || o.max_input > 0 || o.max_output > 0) {
      return fail(Code::invalid_argument, "--scale, --sessions, --limit, --max-input and --max-output belong to a trace");
    }
    if (o.requests > kMostPieces / o.turns) {
      return fail(Code::invalid_argument, "--requests {} with --turns {}: at most {} of both multiplied, as each turn holds all before it",
                  format_grouped(o.requests), format_grouped(o.turns), format_grouped(kMostPieces));
    }
    SyntheticWorkload w;
    w.requests = o.requests;
    K3_TRY_ASSIGN(w.input, LengthDistribution::parse(o.input));
    K3_TRY_ASSIGN(w.output, LengthDistribution::parse(o.output));
    w.turns = o.turns;
    w.shared_prefix_tokens = o.shared_prefix;
    w.think_s = o.think_ms / 1e3;
    w.seed = o.seed;
    return synthetic_workload(w);
  }
  TraceOptions reading;
  reading.block_tokens = o.block_tokens;
  K3_TRY_ASSIGN(TraceReader reader, TraceReader::open(o.trace, reading));
  TraceWorkload w;
  w.scale = o.scale;
  w.max_output = o.rule ? 1 : o.max_output;
  w.max_input = o.max_input;
  w.limit = o.limit;
  if (!o.sessions.empty()) {
    K3_TRY_ASSIGN(w.sessions, parse_sessions(o.sessions));
  }
  auto planned = workload_from_trace(reader, w);
  if (planned.ok() || planned.error().message.starts_with(o.trace))
    return planned;  // what is wrong in a line names the file
  return std::move(planned).take_error().with_context(o.trace);
}

std::optional<double> real_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && std::isfinite(value) && value >= 0;
  return whole ? std::optional(value) : std::nullopt;
}

// "8192:4"
Result<plan::BudgetClass> budget_of(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const auto tokens = real_of(std::string_view(text).substr(0, colon));
  const auto seconds = colon < text.size() ? real_of(std::string_view(text).substr(colon + 1)) : std::nullopt;
  if (!tokens || !seconds || *tokens > 1e15)
    return fail(Code::invalid_argument, "--budget {}: not TOKENS:SECONDS", utf8_repair(text));
  return plan::BudgetClass{static_cast<int64_t>(*tokens), *seconds};
}

// "0@100" or "0@100+60"
Result<plan::Failure> failure_of(const std::string& text) {
  const size_t at = std::min(text.find('@'), text.size()), plus = std::min(text.find('+'), text.size());
  const auto part = [&](size_t from, size_t to) {
    return from <= to ? real_of(std::string_view(text).substr(from, to - from)).value_or(-1) : -1;
  };
  const double replica = part(0, at), when = part(at + 1, plus);
  const double repair = plus < text.size() ? part(plus + 1, text.size()) : 0;
  if (replica < 0 || replica > 1e6 || when < 0 || repair < 0) {
    return fail(Code::invalid_argument, "--fail {}: not REPLICA@SECONDS or REPLICA@SECONDS+REPAIR", utf8_repair(text));
  }
  if (when > kMostTraceSeconds || repair > kMostTraceSeconds) {
    return fail(Code::invalid_argument, "--fail {}: at most {:.0e} seconds", utf8_repair(text), kMostTraceSeconds);
  }
  plan::Failure out{static_cast<int32_t>(replica), when};
  if (plus < text.size()) out.repair_seconds = repair;
  return out;
}

Result<plan::Layout> layout_of(const PlanSetup& setup) {
  K3_TRY_ASSIGN(const plan::Answer answer, plan::answer(setup.scenario));
  if (!answer.best) {
    return fail(Code::exhausted, "{} on {} x {} does not fit; k3 plan says what is missing and the nearest that fits",
                setup.scenario.model, setup.scenario.gpus, setup.scenario.machine.hw.name);
  }
  return answer.layouts[*answer.best].layout;
}

// What a layout is chosen for.
std::pair<int64_t, int64_t> mean_lengths(const plan::Workload& workload) {
  int64_t input = 0, output = 0;
  for (const plan::SimRequest& r : workload.requests) input += r.input_tokens, output += r.output_tokens;
  const auto count = static_cast<int64_t>(workload.requests.size());
  return {std::max<int64_t>(1, input / count), std::max<int64_t>(1, output / count)};
}

// More pages than the requests can ever fill.
int64_t endless_pages(const plan::Workload& workload, const plan::EngineSettings& e) {
  int64_t pages = 1 + e.shape.groups();
  for (const plan::SimRequest& r : workload.requests) {
    const int64_t tokens = r.input_tokens + r.output_tokens;
    pages += e.shape.pages_for(tokens) + 1 + 5 * e.shape.groups();
    if (e.policy.every_tokens > 0) pages += tokens / e.policy.every_tokens * e.shape.groups();
  }
  return pages;
}

// What an engine is whatever times it.
Status set_engine(const SimOptions& o, const PlanSetup& setup, const plan::Workload& workload, plan::EngineSettings* e) {
  const bool measured = !o.clock.empty();
  CoreOptions& core = e->core;
  int64_t longest = 2;
  for (const plan::SimRequest& r : workload.requests) longest = std::max<int64_t>(longest, r.input_tokens + r.output_tokens);
  core.ctx_tokens = o.ctx.value_or(longest);
  core.max_running = o.max_running.value_or(measured ? kCpuRunning : kGpuRunning);
  core.step_tokens = o.step_tokens.value_or(!measured ? kPlannedStepTokens : o.apart ? kGpuStepTokens : kCpuStepTokens);
  core.schedule = o.schedule == "slo" ? SchedulePolicy::slo : SchedulePolicy::fcfs;
  core.keep_idle = !o.no_keep_idle && !o.rule;
  core.separate_phases = measured ? o.apart : !o.together;
  if (core.separate_phases) core.prefill_keys = core.ctx_tokens + kFurtherKeys;
  const bool large = setup.scenario.counts.state_values() >= kLargeState;
  core.block_tokens = o.cache_block.value_or(large ? 512 : 64);
  if (o.rule) core.step_tokens = core.ctx_tokens;
  e->queue = o.queue;
  e->prefix_cache = !o.no_prefix_cache;
  K3_TRY_ASSIGN(e->policy, plan::checkpoint_policy(o.policy, core.block_tokens));
  return {};
}

// A checkpoint is trained for so many tokens; nothing stops it from being asked for more.
void note_lengths(const PlanSetup& setup, SimSetup* out) {
  const int64_t most = setup.config.max_position_embeddings;
  const auto beyond = std::ranges::count_if(out->workload.requests, [&](const plan::SimRequest& r) {
    return static_cast<int64_t>(r.input_tokens) + r.output_tokens > most;
  });
  if (most <= 0 || beyond == 0) return;
  out->notes.push_back(fmt::format("{} of {} requests are longer than the {} tokens at which the model's config ends: nothing "
                                   "says that it works beyond",
                                   format_grouped(beyond), format_grouped(static_cast<int64_t>(out->workload.requests.size())),
                                   format_grouped(most)));
}

Status set_shape(const PlanOptions& o, const plan::Counts& counts, const plan::Layout& layout, plan::EngineSettings* e) {
  cache::CacheDtypes dtypes;
  dtypes.state = o.state == "bf16" ? DType::bf16 : DType::f32;
  dtypes.conv = DType::bf16;
  dtypes.latent = o.latent == "f8_e4m3" ? DType::f8_e4m3 : DType::bf16;
  const int64_t width = (counts.cached_values() + layout.dcp - 1) / layout.dcp;
  const cache::LayerCounts layers{counts.mla_layers, counts.kda_layers, counts.state_values() / layout.tp,
                                  counts.conv_values() / layout.tp, width};
  K3_TRY_ASSIGN(e->shape, cache::make_shape(layers, dtypes, e->core.block_tokens));
  e->ranks = layout.tp;
  return {};
}

// Pages beyond what the requests can ever fill change nothing but the memory of this program.
int64_t counted_pages(int64_t bytes, int64_t endless, const cache::CacheShape& shape) {
  const int64_t pages = bytes / shape.page_bytes;
  return pages <= kUsualPages ? pages : std::min(pages, std::max(endless, kUsualPages));
}

Status set_pool(const SimOptions& o, const plan::Workload& workload, const plan::Layout& layout, double free_bytes,
                plan::EngineSettings* e) {
  const int64_t parts = layout.pp * layout.dp, endless = endless_pages(workload, *e);
  const auto bytes_of = [&](const char* option, const std::string& text) -> Result<int64_t> {
    if (text.empty()) return 0;
    K3_TRY_ASSIGN(const int64_t each, parse_bytes(text));
    if (each > INT64_MAX / parts) return fail(Code::invalid_argument, "{} {}: too much", option, text);
    return each * parts;
  };
  int64_t pool = endless;
  if (!o.unbounded && !o.rule) {
    K3_TRY_ASSIGN(int64_t bytes, bytes_of("--pool-bytes", o.pool_bytes));
    if (o.pool_bytes.empty() && free_bytes > 0) bytes = static_cast<int64_t>(free_bytes) * parts;
    pool = counted_pages(bytes, endless, e->shape);
    if (const int64_t least = 1 + e->shape.groups(); !o.pool_bytes.empty() && pool < least) {
      return fail(Code::invalid_argument, "--pool-bytes {}: has {} pages of {} on a GPU; one sequence needs {}: at least {}",
                  o.pool_bytes, pool, format_bytes(e->shape.page_bytes), least,
                  format_bytes((least * e->shape.page_bytes + parts - 1) / parts));
    }
    if (o.pool_bytes.empty() && free_bytes <= 0) {
      pool = e->core.max_running * (e->shape.pages_for(e->core.ctx_tokens) + e->shape.groups());
    }
  }
  K3_TRY_ASSIGN(const int64_t host_bytes, bytes_of("--host-bytes", o.host_bytes));
  K3_TRY_ASSIGN(const int64_t remote_bytes, bytes_of("--remote-bytes", o.remote_bytes));
  const int64_t host = counted_pages(host_bytes, endless, e->shape), remote = counted_pages(remote_bytes, endless, e->shape);
  const int64_t engines = o.replicas * (o.prefill > 0 ? o.prefill + o.decode : 1);
  if (pool > kMostPages || pool + host + remote > kMostPages / engines) {
    return fail(Code::invalid_argument,
                "{} engines with pools and tiers of {} pages each: at most {} pages in all; give less memory, or fewer "
                "requests where pools "
                "are without end",
                engines, format_grouped(pool + host + remote), format_grouped(kMostPages));
  }
  e->pool_bytes = pool * e->shape.page_bytes;
  e->host_bytes = host * e->shape.page_bytes, e->remote_bytes = remote * e->shape.page_bytes;
  e->remote_seconds = o.remote_ms / 1e3;
  return {};
}

// A machine's engine: its shape, pool, tiers and clock. Answers its layout.
Result<plan::Layout> set_machine(const SimOptions& o, const PlanOptions& plan, const PlanSetup& setup,
                                 const plan::Workload& workload, plan::EngineSettings* e) {
  const plan::Scenario& p = setup.scenario;
  K3_TRY_ASSIGN(const plan::Layout layout, layout_of(setup));
  const plan::Deployment deployment = plan::deployment_of(p, layout);
  const plan::Capacity capacity = plan::capacity(deployment, static_cast<double>(e->core.ctx_tokens));
  if (capacity.free_bytes <= 0 && !o.rule && !o.unbounded) {
    return fail(Code::exhausted,
                "{} on {} x {} ({}): the weights leave no room ({} too little on a GPU); k3 plan says what would fit",
                p.model, p.gpus, p.machine.hw.name, plan::layout_text(layout),
                format_bytes(static_cast<int64_t>(-capacity.free_bytes)));
  }
  K3_TRY(set_shape(plan, p.counts, layout, e));
  K3_TRY(set_pool(o, workload, layout, capacity.free_bytes, e));
  const double share = p.machine.efficiency.link, stages = static_cast<double>(layout.pp);
  e->host_bytes_per_second =
      o.host_gbps ? *o.host_gbps * kGiga * stages : p.machine.hw.host_bytes_per_second * share * stages;
  e->remote_bytes_per_second =
      o.remote_gbps ? *o.remote_gbps * kGiga * stages : p.machine.hw.network_bytes_per_second * share * stages;
  K3_TRY_ASSIGN(e->clock, plan::CostClock::create(deployment, p.draft.tokens, p.draft.scheme));
  return layout;
}

std::string machine_text(const PlanSetup& setup, const plan::Layout& layout) {
  return fmt::format("{} x {}, {}", layout.gpus(), setup.scenario.machine.hw.name, plan::layout_text(layout));
}

// Options of k3 plan that decode engines have in place of the others.
Result<PlanOptions> decode_options(const SimOptions& o, PlanOptions plan) {
  plan.against = o.decode_with;
  auto other = against_options(plan);
  if (other.ok()) return other;
  Error error = std::move(other).take_error();
  constexpr std::string_view kOther = "--against: ";
  if (error.message.starts_with(kOther)) error.message.erase(0, kOther.size());
  return std::move(error).with_context("--decode-with");
}

Status set_costs(const SimOptions& o, const PlanOptions& plan, const PlanSetup& setup, SimSetup* out) {
  plan::SimScenario& s = out->scenario;
  const plan::Scenario& p = setup.scenario;
  K3_TRY_ASSIGN(const plan::Layout layout, set_machine(o, plan, setup, out->workload, &s.engine));
  const double share = p.machine.efficiency.link;
  s.transfer_bytes_per_second = o.transfer_gbps
                                    ? *o.transfer_gbps * kGiga
                                    : p.machine.hw.network_bytes_per_second * share * static_cast<double>(layout.gpus());
  s.transfer_seconds = o.transfer_ms / 1e3;
  s.state_bytes = plan::fixed_bytes(p.counts, p.precision);
  s.latent_bytes_per_token = plan::cache_bytes_per_token(p.counts, p.precision);
  s.request_seconds = o.request_ms ? *o.request_ms / 1e3 : p.machine.efficiency.request_seconds;
  s.decode = s.engine;
  int64_t gpus = layout.gpus();
  std::string text = machine_text(setup, layout),
              machines = fmt::format("{} ({})", p.machine.hw.name, plan::layout_text(layout));
  if (o.prefill > 0 && !o.decode_with.empty()) {
    K3_TRY_ASSIGN(const PlanOptions other, decode_options(o, plan));
    K3_TRY_ASSIGN(const PlanSetup second, plan_setup(other));
    auto decode = set_machine(o, other, second, out->workload, &s.decode);
    if (!decode.ok()) return std::move(decode).take_error().with_context("--decode-with");
    gpus = o.prefill * layout.gpus() + o.decode * decode->gpus();
    text += "; decode: " + machine_text(second, *decode);
    machines += fmt::format(" and {} ({})", second.scenario.machine.hw.name, plan::layout_text(*decode));
  } else if (o.prefill > 0) {
    gpus *= o.prefill + o.decode;
  }
  out->gpus = gpus * s.replicas;
  out->settings.emplace_back("machine", text);
  out->subtitle = fmt::format("{} on {} GPUs {}", p.model, out->gpus, machines);
  return {};
}

Status set_measured(const SimOptions& o, const PlanSetup& setup, SimSetup* out) {
  plan::SimScenario& s = out->scenario;
  K3_TRY_ASSIGN(const auto points, plan::read_points(o.clock));
  K3_TRY_ASSIGN(const auto clock, plan::FittedClock::fit(points, o.step_overhead_ms / 1e3).with_context(o.clock));
  const bool decodes =
      std::ranges::any_of(out->workload.requests, [](const plan::SimRequest& r) { return r.output_tokens > 1; });
  K3_TRY(plan::check_kinds(points, decodes).with_context(o.clock));
  s.engine.clock = clock;
  K3_TRY(set_shape(o.plan, setup.scenario.counts, {}, &s.engine));
  K3_TRY(set_pool(o, out->workload, {}, 0, &s.engine));
  s.engine.host_bytes_per_second = o.host_gbps.value_or(0) * kGiga;
  s.engine.remote_bytes_per_second = o.remote_gbps.value_or(0) * kGiga;
  s.transfer_bytes_per_second = o.transfer_gbps.value_or(0) * kGiga;
  s.transfer_seconds = o.transfer_ms / 1e3;
  s.decode = s.engine;
  s.state_bytes = plan::fixed_bytes(setup.scenario.counts, setup.scenario.precision);
  s.latent_bytes_per_token = plan::cache_bytes_per_token(setup.scenario.counts, setup.scenario.precision);
  s.request_seconds = o.request_ms.value_or(0) / 1e3;
  out->clock_note = fmt::format("{} measured steps, fitted within {:.1f} % (root mean square {:.1f} %)", points.size(),
                                100 * clock->largest_error(), 100 * clock->rms_error());
  if (points.size() < plan::FittedClock::terms()) {
    out->clock_note += fmt::format("; {} points for a curve of {} terms: between and beyond them it is a guess", points.size(),
                                   plan::FittedClock::terms());
  }
  out->settings.emplace_back("clock", fmt::format("{}: {}", o.clock, out->clock_note));
  out->subtitle = fmt::format("{}, steps as measured", setup.scenario.model);
  return {};
}

Status set_pacing(const SimOptions& o, SimSetup* out) {
  plan::SimScenario& s = out->scenario;
  using plan::SimPacing;
  const std::string& recording = o.recorded.empty() ? o.recorded_order : o.recorded;
  const int ways = (o.sequential || o.rule ? 1 : 0) + (o.users ? 1 : 0) + (o.rate ? 1 : 0) + (o.recorded.empty() ? 0 : 1) +
                   (o.recorded_order.empty() ? 0 : 1);
  if (ways > 1)
    return fail(Code::invalid_argument,
                "of --sequential, --rule, --users, --rate, --recorded and --recorded-order one can be given");
  s.pacing = o.sequential || o.rule      ? SimPacing::sequential
             : o.users                   ? SimPacing::users
             : o.rate                    ? SimPacing::poisson
             : !o.recorded.empty()       ? SimPacing::recorded
             : !o.recorded_order.empty() ? SimPacing::recorded_order
             : o.trace == kSynthetic     ? SimPacing::users
                                         : SimPacing::trace;
  s.users = o.users.value_or(1);
  s.rate_per_second = o.rate.value_or(1);
  s.think_seconds = o.think_ms / 1e3;
  s.speed = o.speed;
  s.duration_seconds = o.duration_s;
  if (recording.empty()) return {};
  K3_TRY_ASSIGN(const std::string text, read_file(recording, kMostRecordingBytes));
  auto recorded = plan::parse_recording(text, out->workload);
  if (!recorded.ok()) return std::move(recorded).take_error().with_context(recording);
  s.recorded = *std::move(recorded);
  const auto absent = std::ranges::count_if(s.recorded, [](const plan::RecordedRequest& r) { return r.start_seconds < 0; });
  if (absent > 0) {
    out->notes.push_back(fmt::format("{}: {} of the {} requests are not in it and are not sent", recording,
                                     format_grouped(absent), format_grouped(static_cast<int64_t>(s.recorded.size()))));
  }
  return {};
}

std::string pacing_text(const plan::SimScenario& s) {
  using plan::SimPacing;
  const std::string speed = s.speed == 1 ? "" : fmt::format(", {} times as fast", s.speed);
  switch (s.pacing) {
    case SimPacing::trace: return "by the trace's clock" + speed;
    case SimPacing::sequential: return "one at a time";
    case SimPacing::users: return s.users == 1 ? "one user, closed loop" : fmt::format("{} users, closed loop", s.users);
    case SimPacing::poisson: return fmt::format("{} arrivals a second (Poisson)", s.rate_per_second);
    case SimPacing::recorded: return "at recorded times";
    case SimPacing::recorded_order: return "in recorded order";
  }
  return "";
}

void add_settings(const SimOptions& o, const PlanSetup& setup, SimSetup* out) {
  const plan::SimScenario& s = out->scenario;
  const plan::EngineSettings& e = s.engine;
  const auto add = [&](const char* name, std::string value) { out->settings.emplace_back(name, std::move(value)); };
  add("model", setup.scenario.model);
  add("requests", fmt::format("{} of {}", format_grouped(static_cast<int64_t>(out->workload.requests.size())),
                              o.trace.substr(o.trace.rfind('/') + 1)));
  add("arrivals", pacing_text(s));
  add("checkpoint policy", o.policy);
  add("pool of an engine",
      fmt::format("{} pages of {} tokens, {}", format_grouped(e.pool_bytes / e.shape.page_bytes), e.shape.page_tokens,
                  o.unbounded || o.rule ? "never full" : format_bytes(e.pool_bytes * e.ranks)));
  if (e.host_bytes > 0)
    add("host tier",
        fmt::format("{}, {:.3g} GB/s for a rank", format_bytes(e.host_bytes * e.ranks), e.host_bytes_per_second / kGiga));
  if (e.remote_bytes > 0)
    add("remote tier", fmt::format("{}, {:.3g} GB/s for a rank, {:.3g} ms", format_bytes(e.remote_bytes * e.ranks),
                                   e.remote_bytes_per_second / kGiga, 1e3 * e.remote_seconds));
  add("engine", fmt::format("{} sequences, steps of {} tokens, context {}{}{}", e.core.max_running, e.core.step_tokens,
                            e.core.ctx_tokens, e.core.separate_phases ? ", prompts and decodes take turns" : "",
                            e.core.keep_idle ? ", idle sequences kept" : ""));
  if (s.replicas > 1) add("replicas", fmt::format("{}, {}", s.replicas, o.routing));
  if (s.prefill_engines > 0) {
    add("P/D", fmt::format("{} prefill and {} decode engines, {:.3g} GB/s between them", s.prefill_engines, s.decode_engines,
                           s.transfer_bytes_per_second / kGiga));
  }
  if (s.acceptance.on())
    add("speculation",
        fmt::format("{} drafted, {:.2f} tokens a step", s.acceptance.accepted.size(), s.acceptance.tokens_per_step()));
  for (const std::string& budget : o.budgets) add("budget", budget);
  for (const std::string& failure : o.failures) add("failure", failure);
  if (s.slo_ttft_seconds > 0 || s.slo_tpot_seconds > 0) {
    const std::string ttft = s.slo_ttft_seconds > 0 ? fmt::format("TTFT {} s", s.slo_ttft_seconds) : "";
    const std::string tpot = s.slo_tpot_seconds > 0 ? fmt::format("TPOT {} ms", 1e3 * s.slo_tpot_seconds) : "";
    add("objective", ttft + (ttft.empty() || tpot.empty() ? "" : ", ") + tpot);
  }
}

}  // namespace

Result<SimSetup> sim_setup(const SimOptions& o) {
  K3_TRY(check_use(o));
  SimSetup out;
  plan::SimScenario& s = out.scenario;
  {
    K3_TRY_ASSIGN(const std::vector<PlannedRequest> planned, planned_requests(o));
    K3_TRY_ASSIGN(out.workload, plan::make_workload(planned, !o.made_up_answers));
  }
  PlanOptions p = o.plan;
  std::tie(p.input, p.output) = mean_lengths(out.workload);
  if (!o.clock.empty() && p.gpus == 0) p.gpus = 1;
  K3_TRY_ASSIGN(const PlanSetup setup, plan_setup(p));
  if (!o.decode_with.empty() && (o.prefill == 0 || !o.clock.empty())) {
    return fail(Code::invalid_argument, "--decode-with is for --prefill and --decode, timed by the cost model");
  }
  if ((o.prefill > 0) != (o.decode > 0)) return fail(Code::invalid_argument, "--prefill and --decode are given together");
  s.replicas = static_cast<int32_t>(o.replicas);
  s.prefill_engines = static_cast<int32_t>(o.prefill), s.decode_engines = static_cast<int32_t>(o.decode);
  K3_TRY(set_engine(o, setup, out.workload, &s.engine));
  note_lengths(setup, &out);
  K3_TRY(o.clock.empty() ? set_costs(o, p, setup, &out) : set_measured(o, setup, &out));
  K3_TRY(set_pacing(o, &out));
  s.routing = o.routing == "affinity" ? plan::Routing::affinity : plan::Routing::round_robin;
  for (const std::string& text : o.budgets) {
    K3_TRY_ASSIGN(s.budgets.emplace_back(), budget_of(text));
  }
  for (const std::string& text : o.failures) {
    K3_TRY_ASSIGN(s.failures.emplace_back(), failure_of(text));
  }
  if (o.plan.draft > 0) {
    std::vector<double> lengths;
    for (int64_t i = 1; i <= o.plan.draft; ++i) lengths.push_back(setup.scenario.draft.acceptance.at(i));
    K3_TRY_ASSIGN(s.acceptance, plan::Acceptance::of_lengths(lengths).with_context("--acceptance"));
    s.acceptance.decay = setup.scenario.draft.acceptance.decay;
  }
  s.slo_ttft_seconds = o.slo_ttft.value_or(0);
  s.slo_tpot_seconds = o.slo_tpot_ms.value_or(0) / 1e3;
  s.seed = o.seed;
  s.threads = o.threads > 0 ? o.threads : available_threads();
  s.name = o.name.empty() ? o.policy : o.name;
  add_settings(o, setup, &out);
  K3_TRY(plan::validate(s));
  return out;
}

}  // namespace k3::cli
