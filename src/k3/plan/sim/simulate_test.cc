// Simulations whose every number can be said beforehand: test::RoundClock takes 1 s a step and 1 ms for each token of a
// prompt.
#include <gmock/gmock.h>

#include <cmath>

#include "k3/plan/sim/policies.h"
#include "k3/plan/sim/sim_harness_test.h"

namespace k3::plan {
namespace {

using test::lone;
using test::run;
using testing::HasSubstr;

constexpr int64_t kMany = 4000;  // pages: never full
constexpr double kExact = 1e-9;  // of sums of a few doubles

TEST(Simulate, ARequestTakesItsPrefillAndAStepForEachFurtherToken) {
  SimScenario s = test::small_scenario(kMany);
  s.request_seconds = 0.5;
  const SimResult result = run(s, {lone(1000, 5, 7, 0)});
  const SimRecord& r = result.records[0];
  EXPECT_NEAR(r.arrival, 0, kExact);
  EXPECT_NEAR(r.admitted, 0.5, kExact);
  EXPECT_NEAR(r.first_token, 0.5 + 1 + 1, kExact);
  EXPECT_NEAR(r.end, 2.5 + 4, kExact);
  EXPECT_NEAR(r.tpot(), 1, kExact);
  EXPECT_EQ(r.outcome, SimOutcome::done);
  EXPECT_EQ(r.generated, 5);
  EXPECT_EQ(r.computed, 1000);
  EXPECT_EQ(result.summary.steps, 5);
  EXPECT_NEAR(result.summary.busy_seconds, 6, kExact);
  EXPECT_NEAR(result.summary.seconds, 6.5, kExact);
}

// Also one that starts at 0: it arrives then, and reaches the engine later.
TEST(Simulate, ARecordedOrderCountsFromItsFirstArrival) {
  SimScenario s = test::small_scenario(kMany);
  s.pacing = SimPacing::recorded_order;
  s.request_seconds = 0.5;
  s.recorded = {{0, 1, 2}, {3, 4, 5}};
  const SimResult result = run(s, {lone(1000, 1, 7, 0), lone(1000, 1, 8, 0)});
  EXPECT_NEAR(result.records[0].arrival, 0, kExact);
  EXPECT_NEAR(result.records[0].ttft(), 0.5 + 2, kExact);
  EXPECT_NEAR(result.records[1].arrival, 2.5, kExact);
  EXPECT_NEAR(result.records[1].end, 5, kExact);
  EXPECT_NEAR(result.summary.seconds, 5, kExact);
}

TEST(Simulate, AStepTakesNoMoreThanItsBudget) {
  SimScenario s = test::small_scenario(kMany);
  s.engine.core.step_tokens = 256;
  EXPECT_NEAR(run(s, {lone(1000, 1, 7, 0)}).records[0].end, 4 + 1, kExact);
}

TEST(Simulate, APrefixIsSkippedUpToTheCheckpoint) {
  SimScenario s = test::small_scenario(kMany);
  s.pacing = SimPacing::sequential;
  const SimResult result = run(s, {lone(1000, 1, 7, 0), lone(1000, 1, 7, 0)});
  const SimRecord& r = result.records[1];
  EXPECT_EQ(r.cached, 896);  // the last boundary of 128 tokens
  EXPECT_EQ(r.matched, 896);
  EXPECT_EQ(r.computed, 104);
  EXPECT_NEAR(r.ttft(), 1.104, kExact);
  EXPECT_EQ(result.summary.prompt_tokens, 2000);
  EXPECT_EQ(result.summary.cached_tokens, 896);
  s.engine.prefix_cache = false;
  EXPECT_EQ(run(s, {lone(1000, 1, 7, 0), lone(1000, 1, 7, 0)}).records[1].cached, 0);
}

TEST(Simulate, ATierGivesBackWhatThePoolEvicted) {
  SimScenario s = test::small_scenario(10);  // one request and its checkpoint, no second
  s.pacing = SimPacing::sequential;
  const std::vector<PlannedRequest> requests = {lone(1000, 1, 7, 0), lone(1000, 1, 8, 0), lone(1000, 1, 7, 0)};
  EXPECT_EQ(run(s, requests).records[2].cached, 0);
  s.engine.host_bytes = 100 * s.engine.shape.page_bytes;
  s.engine.host_bytes_per_second = 1e5;
  const SimRecord r = run(s, requests).records[2];
  EXPECT_EQ(r.cached, 896);
  EXPECT_EQ(r.fetched_bytes % s.engine.shape.page_bytes, 0);
  EXPECT_NEAR(r.ttft(), 1.104 + static_cast<double>(r.fetched_bytes) / 1e5, kExact);
  // Behind a host tier too small, a remote one, whose fetches take a time of their own.
  s.engine.host_bytes = 0;
  s.engine.remote_bytes = 100 * s.engine.shape.page_bytes;
  s.engine.remote_bytes_per_second = 1e5;
  const SimRecord quick = run(s, requests).records[2];
  EXPECT_EQ(quick.cached, 896);
  s.engine.remote_seconds = 3;
  const double later = run(s, requests).records[2].ttft() - quick.ttft();
  EXPECT_GE(later, 3 - kExact);
  EXPECT_NEAR(later / 3, std::round(later / 3), kExact);
}

TEST(Simulate, PrefillEnginesHandOver) {
  SimScenario s = test::small_scenario(kMany);
  s.decode = s.engine;
  s.prefill_engines = 2, s.decode_engines = 1;
  s.state_bytes = 3e6, s.latent_bytes_per_token = 1e3;
  s.transfer_bytes_per_second = 2e6, s.transfer_seconds = 0.25;
  const SimResult result = run(s, {lone(1000, 5, 7, 0)});
  const SimRecord& r = result.records[0];
  EXPECT_NEAR(r.first_token, 2, kExact);
  EXPECT_NEAR(r.end, 2 + (3e6 + 1e6) / 2e6 + 0.25 + 4, kExact);
  EXPECT_EQ(r.generated, 5);
  EXPECT_EQ(r.computed, 1000);
  EXPECT_EQ(result.summary.steps, 5);
  EXPECT_EQ(run(s, {lone(1000, 1, 7, 0)}).records[0].end, 2);  // nothing is left to hand over
}

TEST(Simulate, SpeculationBringsTokensOfAStep) {
  SimScenario s = test::small_scenario(kMany);
  s.acceptance = Acceptance::of_alpha(1, 3).value();
  const SimResult all = run(s, {lone(1000, 9, 7, 0)});
  EXPECT_EQ(all.summary.steps, 1 + 2);
  EXPECT_NEAR(all.records[0].end, 2 + 2, kExact);
  EXPECT_EQ(all.records[0].generated, 9);
  s.acceptance = Acceptance::of_alpha(0, 3).value();
  EXPECT_EQ(run(s, {lone(1000, 9, 7, 0)}).summary.steps, 1 + 8);
  // An answer of n tokens takes (n - 1) / AL steps in the mean; draws are independent, so their mean is as far off as chance
  // has it.
  s.acceptance = Acceptance::of_lengths({1.84, 2.45, 2.87}).value();
  constexpr int64_t kTokens = 20001;
  const double steps = static_cast<double>(run(s, {lone(100, kTokens, 7, 0)}).summary.steps - 1);
  const double five_sigma = 5 * 1.5 / std::sqrt(steps);  // tokens of a step lie between 1 and 4: a deviation of at most 1.5
  EXPECT_NEAR(static_cast<double>(kTokens - 1) / steps, 2.87, five_sigma);
}

TEST(Simulate, AcceptanceFallsWithContext) {
  SimScenario s = test::small_scenario(kMany);
  s.acceptance = Acceptance::of_alpha(1, 3).value();
  s.acceptance.decay = {1000, 2000, 0};
  EXPECT_EQ(run(s, {lone(500, 9, 7, 0)}).summary.steps, 1 + 2);
  EXPECT_EQ(run(s, {lone(3000, 9, 7, 0)}).summary.steps, 1 + 8);
}

TEST(Simulate, UsersGoOnWhenTheyHaveTheirAnswer) {
  SimScenario s = test::small_scenario(kMany);
  s.pacing = SimPacing::users;
  s.users = 1;
  s.think_seconds = 10;
  const SimResult result = run(s, {lone(1000, 5, 1, 0), lone(1000, 5, 2, 0), lone(1000, 5, 3, 0)});
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(result.records[static_cast<size_t>(i)].arrival, 16 * i, kExact);
  s.users = 3;
  for (const SimRecord& r : run(s, {lone(1000, 5, 1, 0), lone(1000, 5, 2, 0), lone(1000, 5, 3, 0)}).records)
    EXPECT_EQ(r.arrival, 0);
  s.duration_seconds = 20;
  s.users = 1;
  EXPECT_EQ(run(s, {lone(1000, 5, 1, 0), lone(1000, 5, 2, 0), lone(1000, 5, 3, 0)}).summary.not_sent, 1);
}

TEST(Simulate, ATracesClockMayRunFaster) {
  SimScenario s = test::small_scenario(kMany);
  s.speed = 2;
  EXPECT_NEAR(run(s, {lone(10, 1, 1, 0), lone(10, 1, 2, 40)}).records[1].arrival, 20, kExact);
}

TEST(Simulate, ArrivalsAtRandomHaveTheirRate) {
  SimScenario s = test::small_scenario(kMany);
  s.pacing = SimPacing::poisson;
  s.rate_per_second = 4;
  std::vector<PlannedRequest> requests;
  for (uint64_t i = 0; i < 4000; ++i) requests.push_back(lone(10, 1, i, 0));
  const SimResult result = run(s, requests);
  double last = 0;
  for (const SimRecord& r : result.records) {
    EXPECT_GE(r.arrival, last);
    last = r.arrival;
  }
  EXPECT_NEAR(last, 1000, 5 * 1000 / std::sqrt(4000));  // five standard deviations
  s.seed = 1;
  EXPECT_NE(run(s, requests).records.back().arrival, last);
}

TEST(Simulate, WhatCanNeverRunIsRefusedAndNamed) {
  SimScenario s = test::small_scenario(6);
  const SimResult small = run(s, {lone(100'000, 2, 1, 0), lone(100, 2, 2, 0)});
  EXPECT_EQ(small.summary.refused, 1);
  EXPECT_EQ(small.summary.done, 1);
  EXPECT_THAT(small.first_refusal, HasSubstr("request 0"));
  s.engine.core.ctx_tokens = 500;
  const SimResult result = run(s, {lone(600, 2, 1, 0), lone(490, 100, 2, 0)});
  EXPECT_EQ(result.summary.refused, 1);
  EXPECT_EQ(result.summary.cut, 1);
  EXPECT_EQ(result.records[1].generated, 10);
}

TEST(Simulate, WhatCannotBeSetIsNamed) {
  const Workload w = make_workload({lone(10, 1, 1, 0)}).value();
  const auto message = [&](auto change) {
    SimScenario s = test::small_scenario(kMany);
    change(s);
    const auto result = simulate(s, w);
    return result.ok() ? std::string("it ran") : result.error().message;
  };
  EXPECT_THAT(message([](SimScenario& s) { s.engine.clock = nullptr; }), HasSubstr("engine: no clock"));
  EXPECT_THAT(message([](SimScenario& s) { s.speed = 0; }), HasSubstr("speed: 0"));
  EXPECT_THAT(message([](SimScenario& s) { s.rate_per_second = NAN; }), HasSubstr("rate"));
  EXPECT_THAT(message([](SimScenario& s) { s.users = 0; }), HasSubstr("users: 0"));
  EXPECT_THAT(message([](SimScenario& s) { s.replicas = 0; }), HasSubstr("replicas: 0"));
  EXPECT_THAT(message([](SimScenario& s) { s.prefill_engines = 1; }), HasSubstr("P/D needs"));
  EXPECT_THAT(message([](SimScenario& s) { s.failures = {{1, 5, 5}}; }), HasSubstr("failure of replica 1 of 1"));
  EXPECT_THAT(message([](SimScenario& s) { s.budgets = {{100, 1}, {100, 1}}; }), HasSubstr("budget"));
  EXPECT_THAT(message([](SimScenario& s) { s.engine.host_bytes_per_second = INFINITY; }), HasSubstr("tier"));
  EXPECT_THAT(message([](SimScenario& s) { s.engine.pool_bytes = 0; }), HasSubstr("pool"));
  EXPECT_THAT(message([](SimScenario& s) { s.pacing = SimPacing::recorded; }), HasSubstr("0 recorded requests for 1"));
  EXPECT_THAT(message([](SimScenario& s) { s.pacing = SimPacing::sequential, s.replicas = 2; }), HasSubstr("one replica"));
}

TEST(Simulate, RecordedRunsStartAsRecorded) {
  SimScenario s = test::small_scenario(kMany);
  s.pacing = SimPacing::recorded;
  s.recorded = {{3, 4, 5}, {1, 2, 3}, {-1, -1, -1}};
  const SimResult result = run(s, {lone(10, 2, 1, 0), lone(10, 2, 2, 0), lone(10, 2, 3, 0)});
  EXPECT_EQ(result.records[0].arrival, 3);
  EXPECT_EQ(result.records[1].arrival, 1);
  EXPECT_EQ(result.summary.not_sent, 1);
}

// The third repeats the first, which had ended before it started there; here steps are a hundred times as long.
TEST(Simulate, RecordedOrderIsOfEventsNotOfTimes) {
  SimScenario s = test::small_scenario(kMany);
  s.engine.core.step_tokens = 256;
  s.recorded = {{0, 0.01, 0.02}, {0.015, 0.2, 0.3}, {0.021, 0.2, 0.3}};
  const std::vector<PlannedRequest> requests = {lone(1000, 3, 1, 0), lone(1000, 3, 2, 0), lone(1000, 3, 1, 0)};
  s.pacing = SimPacing::recorded;
  EXPECT_EQ(run(s, requests).records[2].cached, 0);
  s.pacing = SimPacing::recorded_order;
  const SimResult ordered = run(s, requests);
  EXPECT_EQ(ordered.records[2].cached, 896);
  EXPECT_LT(ordered.records[1].arrival, ordered.records[0].end);
  EXPECT_GE(ordered.records[2].arrival, ordered.records[0].end);
}

}  // namespace
}  // namespace k3::plan
