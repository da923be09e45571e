// What holds of every simulation, whatever the requests, the machine and what goes wrong.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "k3/plan/sim/policies.h"
#include "k3/plan/sim/sim_harness_test.h"

namespace k3::plan {
namespace {

constexpr double kRounding = 1e-9;  // of sums of times

struct Draw {
  std::vector<PlannedRequest> requests;
  SimScenario scenario;
};

int64_t draw(int64_t least, int64_t most) { return *rc::gen::inRange<int64_t>(least, most + 1); }
bool coin() { return *rc::gen::arbitrary<bool>(); }

// Sessions and lone requests, some of which begin alike, in order of time.
std::vector<PlannedRequest> draw_requests() {
  std::vector<PlannedRequest> out;
  const int64_t sessions = draw(1, 8);
  for (int64_t session = 0; session < sessions; ++session) {
    const int64_t turns = draw(1, 4);
    const bool lone = turns == 1 && coin();
    PromptPieces prompt = {{static_cast<uint64_t>(draw(1, 3)), draw(1, 700)}};
    for (int64_t turn = 0; turn < turns; ++turn) {
      PlannedRequest r;
      r.session = lone ? -1 : session;
      r.turn = turn;
      r.at_s = static_cast<double>(session) * 0.5;
      r.think_s = turn > 0 && coin() ? 0.25 : 0;
      prompt.push_back({static_cast<uint64_t>(100 + session * 10 + turn), draw(1, 600)});
      r.prompt = prompt;
      r.input_tokens = prompt_tokens(prompt);
      r.output_tokens = draw(1, 300);
      prompt.push_back({static_cast<uint64_t>(1000 + session * 10 + turn), r.output_tokens});
      out.push_back(r);
    }
  }
  return out;
}

// Pools from too small for two sequences to ample, of every policy, with and without tiers.
EngineSettings draw_engine() {
  EngineSettings e = test::small_scenario(draw(24, 120), std::make_shared<test::FussyClock>()).engine;
  e.policy = checkpoint_policy(*rc::gen::element<std::string>("serve", "every", "end", "end+256", "end+second", "end+second+512"), 128).value();
  e.core.keep_idle = coin();
  e.core.separate_phases = coin();
  e.core.schedule = coin() ? SchedulePolicy::fcfs : SchedulePolicy::slo;
  e.core.step_tokens = draw(64, 2000);
  e.core.max_running = draw(1, 12);
  e.prefix_cache = draw(0, 4) > 0;
  e.queue = draw(1, 8);
  e.host_bytes = coin() ? draw(0, 40) * e.shape.page_bytes : 0;
  e.remote_bytes = coin() ? draw(0, 80) * e.shape.page_bytes : 0;
  e.host_bytes_per_second = 1e7;
  e.remote_bytes_per_second = 1e6;
  e.remote_seconds = 0.01;
  return e;
}

Draw draw_all() {
  Draw d{draw_requests(), {}};
  SimScenario& s = d.scenario;
  s.engine = draw_engine();
  s.decode = draw_engine();
  s.replicas = static_cast<int32_t>(draw(1, 4));
  if (draw(0, 2) == 0) s.prefill_engines = static_cast<int32_t>(draw(1, 2)), s.decode_engines = static_cast<int32_t>(draw(1, 2));
  s.transfer_bytes_per_second = coin() ? 1e7 : 0;
  s.state_bytes = 1e5, s.latent_bytes_per_token = 100;
  s.pacing = *rc::gen::element(SimPacing::trace, SimPacing::users, SimPacing::poisson);
  if (draw(0, 4) == 0) s.pacing = SimPacing::sequential, s.replicas = 1, s.prefill_engines = s.decode_engines = 0;
  s.users = draw(1, 6);
  s.think_seconds = coin() ? 0.5 : 0;
  s.rate_per_second = 3;
  s.request_seconds = coin() ? 0.025 : 0;
  s.routing = coin() ? Routing::affinity : Routing::round_robin;
  if (coin()) s.budgets = {{300, 0.2}, {1200, 0.5}};
  for (int64_t i = draw(0, 2); i > 0; --i) {
    s.failures.push_back({static_cast<int32_t>(draw(0, s.replicas - 1)), static_cast<double>(draw(0, 40)) / 10, static_cast<double>(draw(1, 30)) / 10});
  }
  if (coin()) s.acceptance = Acceptance::of_alpha(0.7, draw(1, 5)).value();
  s.seed = static_cast<uint64_t>(draw(0, 1000));
  return d;
}

// What a counterexample was, for the reader of its log.
void describe(const Draw& d, const std::vector<const SimResult*>& results) {
  const SimScenario& s = d.scenario;
  RC_LOG() << fmt::format("pacing {}, {} users, {} replicas, P/D {}+{}, request {} s, {} budgets, {} drafted\n", static_cast<int>(s.pacing), s.users, s.replicas, s.prefill_engines,
                          s.decode_engines, s.request_seconds, s.budgets.size(), s.acceptance.accepted.size());
  for (const EngineSettings* e : {&s.engine, &s.decode}) {
    RC_LOG() << fmt::format("engine: {} pages, host {} B, remote {} B, {} running, steps of {}, queue {}, idle {}, apart {}, slo {}, every {}, second {}\n",
                            e->pool_bytes / e->shape.page_bytes, e->host_bytes, e->remote_bytes, e->core.max_running, e->core.step_tokens, e->queue, e->core.keep_idle,
                            e->core.separate_phases, e->core.schedule == SchedulePolicy::slo, e->policy.every_tokens, e->policy.second_sighting);
  }
  for (const Failure& f : s.failures) RC_LOG() << fmt::format("replica {} fails at {} s for {} s\n", f.replica, f.at_seconds, f.repair_seconds);
  for (size_t i = 0; i < d.requests.size(); ++i) {
    const PlannedRequest& r = d.requests[i];
    RC_LOG() << fmt::format("{}: session {} turn {}, {} + {} tokens at {} s", i, r.session, r.turn, r.input_tokens, r.output_tokens, r.at_s);
    for (const SimResult* result : results) {
      const SimRecord& x = result->records[i];
      RC_LOG() << fmt::format(" | {} on {}: {} {} {} {}, {} of {} skipped, {} computed, {} generated, {} preemptions, {} restarts", sim_outcome_name(x.outcome), x.replica, x.arrival,
                              x.admitted, x.first_token, x.end, x.cached, x.matched, x.computed, x.generated, x.preemptions, x.restarts);
    }
    RC_LOG() << "\n";
  }
}

void check_record(const SimScenario& s, const PlannedRequest& wanted, const SimRecord& r) {
  RC_ASSERT(r.outcome == SimOutcome::done);  // the pool holds each of them alone, and every replica comes back
  RC_ASSERT(r.generated == wanted.output_tokens);
  RC_ASSERT(r.arrival >= 0);
  RC_ASSERT(r.arrival + s.request_seconds <= r.admitted + kRounding);
  RC_ASSERT(r.admitted <= r.first_token);
  RC_ASSERT(r.first_token <= r.end);
  RC_ASSERT(r.cached >= 0 && r.cached <= r.matched && r.matched < wanted.input_tokens);
  // With P/D, what the decode engine has to compute after a preemption counts too.
  const int64_t least = r.restarts == 0 ? wanted.input_tokens - r.cached : 0;
  RC_ASSERT(r.computed >= least);
  if (r.preemptions == 0 && r.restarts == 0) RC_ASSERT(r.computed == least);
  if (s.failures.empty()) RC_ASSERT(r.restarts == 0 && r.lost_tokens == 0);
  if (s.engine.host_bytes == 0 && s.engine.remote_bytes == 0 && (s.prefill_engines == 0 || (s.decode.host_bytes == 0 && s.decode.remote_bytes == 0))) {
    RC_ASSERT(r.fetched_bytes == 0);
  }
}

TEST(SimulateProperty, EveryRequestEndsOnceAndNothingIsLost) {
  EXPECT_TRUE(rc::check([] {
    const Draw d = draw_all();
    const Workload workload = make_workload(d.requests).value();
    const SimResult result = simulate(d.scenario, workload).value();
    describe(d, {&result});
    RC_ASSERT(result.first_refusal.empty());
    int64_t prompt = 0, cached = 0, generated = 0;
    for (size_t i = 0; i < d.requests.size(); ++i) {
      check_record(d.scenario, d.requests[i], result.records[i]);
      prompt += d.requests[i].input_tokens;
      cached += result.records[i].cached;
      generated += d.requests[i].output_tokens;
      const SimRequest& r = workload.requests[i];
      if (r.previous >= 0 && d.scenario.pacing != SimPacing::sequential) {
        RC_ASSERT(result.records[i].arrival + kRounding >= result.records[static_cast<size_t>(r.previous)].end);
      }
    }
    const SimSummary& sum = result.summary;
    RC_ASSERT(sum.done == static_cast<int64_t>(d.requests.size()));
    RC_ASSERT(sum.prompt_tokens == prompt && sum.cached_tokens == cached && sum.generated_tokens == generated);
    int64_t reasons = 0;
    for (const int64_t count : sum.by_reason) reasons += count;
    RC_ASSERT(reasons == sum.requests);
  }));
}

// Steps that are computed together are those that would have been computed one by one, to the last bit of their times.
TEST(SimulateProperty, RepeatedStepsChangeNothing) {
  EXPECT_TRUE(rc::check([] {
    Draw d = draw_all();
    const Workload workload = make_workload(d.requests).value();
    const SimResult quick = simulate(d.scenario, workload).value();
    d.scenario.repeats = false;
    const SimResult slow = simulate(d.scenario, workload).value();
    describe(d, {&quick, &slow});
    RC_ASSERT(quick.summary.steps == slow.summary.steps);
    RC_ASSERT(quick.summary.cache.evicted_pages == slow.summary.cache.evicted_pages);
    for (size_t i = 0; i < d.requests.size(); ++i) {
      const SimRecord &a = quick.records[i], &b = slow.records[i];
      RC_ASSERT(a.arrival == b.arrival && a.admitted == b.admitted && a.first_token == b.first_token && a.end == b.end);
      RC_ASSERT(a.cached == b.cached && a.matched == b.matched && a.limit == b.limit && a.preemptions == b.preemptions);
    }
  }));
}

// Little's law on the sampled state: requests in the engine, summed over time, are the times that requests spent there. Each request's
// stay is off by at most a step of the grid and a step of the engine at either end.
TEST(SimulateProperty, RequestsInTheEngineAddUpToTheirTimes) {
  EXPECT_TRUE(rc::check([] {
    Draw d = draw_all();
    SimScenario& s = d.scenario;
    s.request_seconds = 0;
    s.failures.clear();
    s.prefill_engines = s.decode_engines = 0;
    const SimResult result = simulate(s, make_workload(d.requests).value()).value();
    describe(d, {&result});
    double sampled = 0, spent = 0, longest = 0;
    for (const SimSample& sample : result.series.samples()) sampled += static_cast<double>(sample.queued + sample.running) * result.series.step_seconds();
    for (const SimRecord& r : result.records) spent += r.end - r.arrival;
    // The longest step: a whole budget of prompt tokens (and fetches ahead of it) beside all sequences.
    longest = 0.0031 + 1.7e-4 * 2000 + 3.3e-9 * 12 * 1e4 + 12 * 1e-3;
    double fetched = 0;
    for (const SimRecord& r : result.records) fetched += static_cast<double>(r.fetched_bytes) / 1e6 + 0.01 * static_cast<double>(r.fetched_bytes) / static_cast<double>(s.engine.shape.page_bytes);
    const double each = result.series.step_seconds() + 2 * (longest + fetched);
    RC_ASSERT(std::abs(sampled - spent) <= each * static_cast<double>(result.records.size()));
  }));
}

}  // namespace
}  // namespace k3::plan
