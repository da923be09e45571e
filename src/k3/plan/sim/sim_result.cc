#include "k3/plan/sim/sim_result.h"

#include <algorithm>
#include <cmath>

namespace k3::plan {

std::string_view sim_outcome_name(SimOutcome outcome) {
  switch (outcome) {
    case SimOutcome::not_sent: return "not_sent";
    case SimOutcome::done: return "done";
    case SimOutcome::cut: return "cut";
    case SimOutcome::refused: return "refused";
    case SimOutcome::lost: return "lost";
  }
  return "?";
}

std::string_view cut_reason(const SimRecord& record) {
  return record.resumed_idle ? "idle" : cache::hit_limit_name(record.limit);
}

void SimSample::add(const SimSample& o) {
  queued += o.queued, running += o.running;
  pages += o.pages, free += o.free;
  running_mla += o.running_mla, running_kda += o.running_kda;
  cached_mla += o.cached_mla, cached_kda += o.cached_kda, checkpoints += o.checkpoints;
  prompt_tokens += o.prompt_tokens, hit_tokens += o.hit_tokens;
  evicted_pages += o.evicted_pages, evicted_checkpoints += o.evicted_checkpoints;
}

SimSample SimSample::sums() const {
  SimSample out;
  out.prompt_tokens = prompt_tokens, out.hit_tokens = hit_tokens;
  out.evicted_pages = evicted_pages, out.evicted_checkpoints = evicted_checkpoints;
  return out;
}

void SimSeries::halve() {
  size_t kept = 0;
  for (size_t i = 0; i < samples_.size(); i += 2) samples_[kept++] = samples_[i];
  samples_.resize(kept);
  step_ *= 2;
}

void SimSeries::record(double until, const SimSample& state) {
  while (static_cast<double>(samples_.size()) * step_ <= until) {
    samples_.push_back(state);
    if (samples_.size() >= kMostSamples) halve();
  }
  last_ = state;
}

void SimSeries::merge(const SimSeries& added) {
  SimSeries other = added;
  while (other.step_ < step_) other.halve();
  while (step_ < other.step_) halve();
  if (samples_.empty()) {
    const double step = other.step_;
    *this = std::move(other);
    step_ = step;
    return;
  }
  const size_t count = std::max(samples_.size(), other.samples_.size());
  samples_.resize(count, last_);
  other.samples_.resize(count, other.last_);
  for (size_t i = 0; i < count; ++i) samples_[i].add(other.samples_[i]);
  last_.add(other.last_);
}

double SimSummary::hit_ratio() const {
  return prompt_tokens > 0 ? static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens) : 0;
}
double SimSummary::matched_ratio() const {
  return prompt_tokens > 0 ? static_cast<double>(matched_tokens) / static_cast<double>(prompt_tokens) : 0;
}

namespace {

void count_record(const SimScenario& scenario, const SimRecord& r, SimSummary* s) {
  switch (r.outcome) {
    case SimOutcome::done: ++s->done; break;
    case SimOutcome::cut: ++s->cut; break;
    case SimOutcome::refused: ++s->refused; break;
    case SimOutcome::not_sent: ++s->not_sent; break;
    case SimOutcome::lost: ++s->lost; break;
  }
  s->generated_tokens += r.generated;
  s->lost_tokens += r.lost_tokens;
  s->computed_tokens += r.computed;
  s->preemptions += r.preemptions;
  s->restarts += r.restarts;
  s->fetched_bytes += r.fetched_bytes;
  if (r.admitted < 0) return;
  s->cached_tokens += r.cached;
  s->matched_tokens += r.matched;
  ++s->by_reason[r.resumed_idle ? 5 : static_cast<size_t>(r.limit)];
  const bool in_time = (scenario.slo_ttft_seconds <= 0 || r.ttft() <= scenario.slo_ttft_seconds) &&
                       (scenario.slo_tpot_seconds <= 0 || r.tpot() <= scenario.slo_tpot_seconds);
  s->within_slo += r.outcome == SimOutcome::done && in_time ? 1 : 0;
}

}  // namespace

void summarise(const SimScenario& scenario, const Workload& workload, SimResult* result) {
  SimSummary& s = result->summary;
  s.requests = static_cast<int64_t>(result->records.size());
  std::vector<double> ttft, tpot, queue, e2e;
  double first = INFINITY, last = 0;
  for (size_t i = 0; i < result->records.size(); ++i) {
    const SimRecord& r = result->records[i];
    count_record(scenario, r, &s);
    s.input_tokens += workload.requests[i].input_tokens;
    if (r.admitted >= 0) s.prompt_tokens += workload.requests[i].input_tokens;
    if (r.arrival >= 0) first = std::min(first, r.arrival);
    last = std::max(last, r.end);
    if (r.outcome != SimOutcome::done && r.outcome != SimOutcome::cut) continue;
    queue.push_back(r.queue_seconds());
    e2e.push_back(r.end - r.arrival);
    if (r.first_token >= 0) ttft.push_back(r.ttft());
    if (r.tpot() >= 0) tpot.push_back(r.tpot());
  }
  s.seconds = last > first ? last - first : 0;
  s.ttft = spread_of(std::move(ttft));
  s.tpot = spread_of(std::move(tpot));
  s.queue = spread_of(std::move(queue));
  s.e2e = spread_of(std::move(e2e));
  for (const SimSample& sample : result->series.samples())
    s.most_checkpoints = std::max(s.most_checkpoints, sample.checkpoints);
  s.most_checkpoints = std::max(s.most_checkpoints, s.cache.checkpoints);
  const cache::CacheShape& shape = scenario.engine.shape;
  s.checkpoint_bytes = static_cast<double>(s.most_checkpoints * shape.groups() * scenario.engine.ranks) *
                       static_cast<double>(shape.page_bytes);
}

}  // namespace k3::plan
