#include "k3/plan/sim/cell.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace k3::plan {

Cell::Cell(const SimScenario& scenario, const Workload& workload, std::span<const uint64_t> affinity, int32_t number,
           std::vector<SimRecord>& records)
    : scenario_(scenario), workload_(workload), affinity_(affinity), number_(number), records_(records) {}

Cell::~Cell() {
  over_ = true;
  engines_.clear();
}

Status Cell::open() {
  engines_.clear();
  const auto add = [&](const EngineSettings& settings, SimEngine::Role role) -> Status {
    K3_TRY_ASSIGN(auto engine, SimEngine::create(scenario_, settings, role));
    engines_.push_back(std::move(engine));
    return {};
  };
  if (scenario_.prefill_engines == 0) return add(scenario_.engine, SimEngine::Role::both);
  for (int32_t i = 0; i < scenario_.prefill_engines; ++i) K3_TRY(add(scenario_.engine, SimEngine::Role::prefill));
  for (int32_t i = 0; i < scenario_.decode_engines; ++i) K3_TRY(add(scenario_.decode, SimEngine::Role::decode));
  link_free_.assign(static_cast<size_t>(scenario_.prefill_engines), 0);
  return {};
}

void Cell::start_at(int32_t index, double seconds) {
  if (scenario_.duration_seconds > 0 && seconds >= scenario_.duration_seconds) return;
  restart_at(index, seconds);
}

void Cell::restart_at(int32_t index, double seconds) { events_.push({seconds + scenario_.request_seconds, index}); }

void Cell::start_users(int64_t users) {
  for (; users > 0 && !line_.empty(); --users) {
    start_at(line_.front(), 0);
    line_.pop_front();
  }
}

// What happened, in order; at one time ends come before starts.
void Cell::follow_recording() {
  for (size_t i = 0; i < scenario_.recorded.size(); ++i) {
    const RecordedRequest& r = scenario_.recorded[i];
    const auto index = static_cast<int32_t>(i);
    if (r.start_seconds < 0) continue;
    script_.push_back({r.start_seconds, 2, index});
    if (r.first_token_seconds >= 0) script_.push_back({r.first_token_seconds, 1, index});
    if (r.end_seconds >= 0) script_.push_back({r.end_seconds, 0, index});
  }
  std::ranges::stable_sort(script_, [](const Step& a, const Step& b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.kind < b.kind;
  });
}

void Cell::replay() {
  for (; script_at_ < script_.size(); ++script_at_) {
    const Step& step = script_[script_at_];
    SimEngine& engine = *engines_.front();
    if (step.kind == 2) {
      arrive(step.request, engine.now() + scenario_.request_seconds);
      continue;
    }
    const SimRecord& r = record(step.request);
    const bool reached = r.end >= 0 || (step.kind == 1 && r.first_token >= 0);
    if (!reached && engine.busy()) return;
  }
}

// ---- events ----

// No step may begin in one go with another when something could have come in between.
double Cell::horizon(const SimEngine& engine, double until) const {
  double out = std::min(until, events_.empty() ? INFINITY : events_.top().seconds);
  for (const auto& other : engines_) {
    if (other.get() != &engine && other->busy()) out = std::min(out, other->now());
  }
  return out;
}

void Cell::run(double until) {
  for (;;) {
    if (!script_.empty()) replay();
    SimEngine* first = nullptr;
    for (const auto& engine : engines_) {
      if (engine->busy() && (first == nullptr || engine->now() < first->now())) first = engine.get();
    }
    const double next = events_.empty() ? INFINITY : events_.top().seconds;
    if (first == nullptr || next <= first->now()) {
      if (next >= until) return;
      deliver();
      continue;
    }
    if (first->now() >= until) return;
    fill(*first);
    first->executor().set_horizon(horizon(*first, until));
    if (first->step() || !first->busy()) continue;
    // Nothing could be computed. What could change that is something else that happens.
    double later = next;
    for (const auto& other : engines_) {
      if (other.get() != first && other->busy()) later = std::min(later, std::nextafter(other->now(), INFINITY));
    }
    if (later < INFINITY) {
      first->wait(std::min(later, until));
      continue;
    }
    refusal_ = "an engine holds requests that it can neither run nor end";
    return;
  }
}

void Cell::deliver() {
  const Event event = events_.top();
  events_.pop();
  switch (event.kind) {
    case EventKind::hands_over: hand_over(event); break;
    case EventKind::handed_over: queue(*engines_[static_cast<size_t>(event.engine)], event.request, event.seconds, 0); break;
    case EventKind::arrives: arrive(event.request, event.seconds); break;
  }
}

SimEngine& Cell::engine_for(int32_t index, SimEngine::Role role) {
  if (engines_.size() == 1) return *engines_.front();
  const bool decode = role == SimEngine::Role::decode;
  const size_t begin = decode ? static_cast<size_t>(scenario_.prefill_engines) : 0;
  const size_t count = static_cast<size_t>(decode ? scenario_.decode_engines : scenario_.prefill_engines);
  if (request(index).session >= 0) return *engines_[begin + affinity_[static_cast<size_t>(index)] % count];
  size_t least = begin;
  for (size_t i = begin; i < begin + count; ++i) {
    if (engines_[i]->requests() < engines_[least]->requests()) least = i;
  }
  return *engines_[least];
}

double Cell::cost_of(SimEngine& engine, int32_t index) const {
  if (scenario_.budgets.empty()) return 0;
  const SimRequest& r = request(index);
  const auto keys = block_keys(workload_, index, engine.settings().core.block_tokens, r.input_tokens);
  const int64_t cached = engine.cache().peek({keys, {}, r.input_tokens, {}}).cached_tokens;
  const StepPart part{r.input_tokens - cached, cached, false};
  return engine.settings().clock->step_seconds(std::span(&part, 1));
}

void Cell::arrive(int32_t index, double seconds) {
  SimRecord& r = record(index);
  if (r.arrival < 0) r.arrival = seconds - scenario_.request_seconds;
  r.replica = number_;
  SimEngine& engine = engine_for(index, SimEngine::Role::prefill);
  const double cost = cost_of(engine, index);
  if (cost > 0) costs_[index] = cost;
  queue(engine, index, seconds, cost);
}

void Cell::queue(SimEngine& engine, int32_t index, double seconds, double cost) {
  if (!engine.busy()) engine.wait(seconds);
  engine.gate(index, request(index).input_tokens, cost);
}

// ---- requests ----

void Cell::fill(SimEngine& engine) {
  for (int32_t index; (index = engine.pass()) >= 0;) submit(engine, index);
}

Request Cell::make_request(SimEngine& engine, int32_t index) {
  const SimRequest& r = request(index);
  const bool decode = engine.role() == SimEngine::Role::decode;
  const int64_t block_tokens = engine.settings().core.block_tokens;
  const int64_t all = std::min<int64_t>(r.input_tokens + r.output_tokens, engine.settings().core.ctx_tokens);
  const auto modelled = std::make_shared<ModelledTokens>();
  modelled->keys = block_keys(workload_, index, block_tokens, all);
  modelled->prompt_tokens = r.input_tokens + (decode ? 1 : 0);
  modelled->arrived_tokens = decode ? r.input_tokens : 0;
  if (r.session >= 0) {
    modelled->session = r.chain;
    modelled->continues_tokens = continued_tokens(workload_, index);
  }
  Request out;
  out.modelled = modelled;
  out.max_tokens = engine.role() == SimEngine::Role::prefill ? 1 : r.output_tokens - (decode ? 1 : 0);
  if (r.previous >= 0 && !decode && workload_.answers_continue) out.turn_ends = {modelled->continues_tokens};
  out.callbacks.on_admitted = [this, index, &engine](const Admitted& found) { admitted(engine, index, found); };
  out.callbacks.on_token = [this, index, &engine](const GeneratedToken& token) {
    if (token.index == 0) first_token(engine, index);
    return true;
  };
  out.callbacks.on_done = [this, index, &engine](const RequestSummary& summary) { done(engine, index, summary); };
  return out;
}

void Cell::submit(SimEngine& engine, int32_t index) {
  Request made = make_request(engine, index);
  if (Status status = check_request(engine.settings().core, made); !status.ok()) {
    if (refusal_.empty()) refusal_ = fmt::format("request {}: {}", index, status.error().message);
    settle(engine, index);
    finish(index, engine.now(), SimOutcome::refused);
    return;
  }
  engine.core().submit(RequestId{static_cast<uint64_t>(index) + 1}, std::move(made));
}

void Cell::admitted(SimEngine& engine, int32_t index, const Admitted& found) {
  SimRecord& r = record(index);
  r.fetched_bytes += found.fetched_bytes * engine.settings().ranks;
  if (engine.role() == SimEngine::Role::decode) return;
  engine.count(found);
  if (r.admitted < 0) r.admitted = engine.now();
  r.cached = static_cast<int32_t>(found.cached_tokens);
  r.matched = static_cast<int32_t>(found.matched_tokens);
  r.limit = found.limit;
  r.resumed_idle = found.resumed_idle;
}

// What its prefill counted in its budget is free again.
void Cell::settle(SimEngine& engine, int32_t index) {
  const auto cost = costs_.find(index);
  if (cost == costs_.end()) return;
  engine.settle(request(index).input_tokens, cost->second);
  costs_.erase(cost);
}

void Cell::first_token(SimEngine& engine, int32_t index) {
  if (engine.role() == SimEngine::Role::decode) return;
  SimRecord& r = record(index);
  if (r.first_token < 0) r.first_token = engine.now();
  settle(engine, index);
}

void Cell::done(SimEngine& engine, int32_t index, const RequestSummary& summary) {
  if (over_) return;
  SimRecord& r = record(index);
  const auto generated = static_cast<int32_t>(summary.generated_tokens);
  r.preemptions += static_cast<int32_t>(summary.preemptions);
  r.computed += static_cast<int32_t>(summary.computed_tokens);
  if (deaf_) {
    r.lost_tokens += r.generated + generated;
    r.generated = 0;
    return;
  }
  r.generated += generated;
  settle(engine, index);
  if (summary.error) {
    if (refusal_.empty()) refusal_ = fmt::format("request {}: {}", index, summary.error->message);
    finish(index, engine.now(), SimOutcome::refused);
    return;
  }
  const int32_t wanted = request(index).output_tokens;
  if (engine.role() == SimEngine::Role::prefill && r.generated < wanted) {
    events_.push({engine.now(), index, EventKind::hands_over, number_of(engine)});
    return;
  }
  finish(index, engine.now(), r.generated < wanted ? SimOutcome::cut : SimOutcome::done);
}

int32_t Cell::number_of(const SimEngine& engine) const {
  const auto at = std::ranges::find(engines_, &engine, &std::unique_ptr<SimEngine>::get);
  return static_cast<int32_t>(at - engines_.begin());
}

// The link of a prefill engine sends one request after another: its states, and the latents that the decode engine does not
// have now.
void Cell::hand_over(const Event& event) {
  const SimRequest& r = request(event.request);
  SimEngine& target = engine_for(event.request, SimEngine::Role::decode);
  const auto keys = block_keys(workload_, event.request, target.settings().core.block_tokens, r.input_tokens);
  const int64_t there = target.cache().peek({keys, {}, r.input_tokens, {}}).matched_tokens;
  const double bytes =
      scenario_.state_bytes + static_cast<double>(r.input_tokens - there) * scenario_.latent_bytes_per_token;
  double& free = link_free_[static_cast<size_t>(event.engine)];
  free = std::max(event.seconds, free) +
         (scenario_.transfer_bytes_per_second > 0 ? bytes / scenario_.transfer_bytes_per_second : 0);
  events_.push({free + scenario_.transfer_seconds, event.request, EventKind::handed_over, number_of(target)});
}

void Cell::finish(int32_t index, double seconds, SimOutcome outcome) {
  SimRecord& r = record(index);
  r.end = seconds;
  r.outcome = outcome;
  follow(index, seconds);
}

// Who starts because this one has ended.
void Cell::follow(int32_t index, double seconds) {
  const SimRequest& r = request(index);
  const SimPacing pacing = scenario_.pacing;
  if (pacing == SimPacing::recorded || pacing == SimPacing::recorded_order) return;
  if (pacing != SimPacing::sequential && r.next >= 0) {
    const SimRequest& next = request(r.next);
    double at = next.think_seconds > 0       ? next.think_seconds / scenario_.speed
                : pacing == SimPacing::users ? scenario_.think_seconds
                                             : 0;
    at += seconds;
    if (next.not_before_at && pacing == SimPacing::trace) at = std::max(at, next.at_seconds / scenario_.speed);
    start_at(r.next, at);
    return;
  }
  if ((pacing != SimPacing::sequential && pacing != SimPacing::users) || line_.empty()) return;
  start_at(line_.front(), seconds + (pacing == SimPacing::users ? scenario_.think_seconds : 0));
  line_.pop_front();
}

// ---- the end ----

Result<std::vector<Cell::Orphan>> Cell::fail(double seconds, double back) {
  for (const auto& engine : engines_) seconds = std::max(seconds, engine->now());
  std::vector<Orphan> orphans;
  const auto orphan = [&](int32_t index, double at) {
    orphans.push_back({index, at, false});
    record(index).lost_tokens += std::exchange(record(index).generated, 0);  // of its prefill engine
    ++record(index).restarts;
  };
  for (const auto& engine : engines_) {
    for (const int32_t index : engine->gated()) orphan(index, seconds);
  }
  // Those inside the engines end without their callbacks being heard.
  std::vector<int32_t> inside;
  deaf_ = true;
  for (const auto& engine : engines_) {
    for (const RequestId id : engine->core().requests())
      inside.push_back(static_cast<int32_t>(static_cast<uint64_t>(id) - 1));
    engine->core().stop_all(EndReason::interrupted);
  }
  deaf_ = false;
  for (const int32_t index : inside) orphan(index, seconds);
  std::vector<Event> kept;
  for (; !events_.empty(); events_.pop()) {
    const Event& event = events_.top();
    if (event.kind != EventKind::arrives) {
      orphan(event.request, seconds);
    } else if (event.seconds < back) {
      orphans.push_back({event.request, event.seconds - scenario_.request_seconds, false});
    } else {
      kept.push_back(event);
    }
  }
  for (const Event& event : kept) events_.push(event);
  for (const int32_t index : line_) orphans.push_back({index, seconds, true});
  line_.clear();
  costs_.clear();
  close(&lost_, true);
  K3_TRY(open());
  for (const auto& engine : engines_) engine->wait(seconds);
  return orphans;
}

void Cell::close(SimSummary* sums, bool lost) {
  if (!lost) {
    sums->steps += lost_.steps, sums->busy_seconds += lost_.busy_seconds;
    sums->cache.evicted_pages += lost_.cache.evicted_pages,
        sums->cache.evicted_checkpoints += lost_.cache.evicted_checkpoints;
    sums->cache.host_hits += lost_.cache.host_hits, sums->cache.disk_hits += lost_.cache.disk_hits;
    sums->cache.copied_bytes += lost_.cache.copied_bytes;
  }
  for (const auto& engine : engines_) {
    SimSample last = engine->state();
    if (lost) last = last.sums();
    engine->series().close(last);
    series_.merge(engine->series());
    const cache::CacheStats c = engine->cache().stats();
    sums->cache.pages += c.pages, sums->cache.checkpoints += c.checkpoints;
    sums->cache.evicted_pages += c.evicted_pages, sums->cache.evicted_checkpoints += c.evicted_checkpoints;
    sums->cache.host_hits += c.host_hits, sums->cache.disk_hits += c.disk_hits;
    sums->cache.copied_bytes += c.copied_bytes;
    sums->cached_blocks += lost ? 0 : static_cast<int64_t>(engine->cache().contents().size());
    sums->steps += engine->core().steps();
    sums->busy_seconds += engine->executor().busy_seconds();
  }
}

}  // namespace k3::plan
