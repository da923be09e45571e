// Several replicas: who goes where, what a failure costs, what budgets keep free.
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "k3/plan/sim/sim_harness_test.h"

namespace k3::plan {
namespace {

using test::lone;
using test::run;

constexpr int64_t kMany = 4000;
constexpr double kExact = 1e-9;

std::vector<PlannedRequest> sessions(int64_t count, int64_t turns, double think = 1) {
  SyntheticWorkload w;
  w.requests = count * turns;
  w.turns = turns;
  w.think_s = think;
  w.input = LengthDistribution::parse("uniform:100:900").value();
  w.output = LengthDistribution::parse("uniform:1:20").value();
  return synthetic_workload(w);
}

std::map<int64_t, std::set<int32_t>> replicas_of(const std::vector<PlannedRequest>& requests, const SimResult& result) {
  std::map<int64_t, std::set<int32_t>> out;
  for (size_t i = 0; i < requests.size(); ++i) out[requests[i].session].insert(result.records[i].replica);
  return out;
}

TEST(Fleet, SessionsStayWhereTheirCacheIs) {
  SimScenario s = test::small_scenario(kMany);
  s.replicas = 4;
  s.pacing = SimPacing::poisson;
  const auto requests = sessions(40, 5);
  const SimResult result = run(s, requests);
  EXPECT_EQ(result.summary.done, 200);
  std::set<int32_t> used;
  for (const auto& [session, replicas] : replicas_of(requests, result)) {
    EXPECT_EQ(replicas.size(), 1u) << session;
    used.insert(replicas.begin(), replicas.end());
  }
  EXPECT_EQ(used.size(), 4u);
  s.routing = Routing::round_robin;
  EXPECT_EQ(run(s, requests).summary.done, 200);
}

// Of prompts without sessions, those that go on where another one ended.
TEST(Fleet, PromptsThatRepeatAnEarlierOneFollowIt) {
  SimScenario s = test::small_scenario(kMany);
  s.replicas = 8;
  std::vector<PlannedRequest> requests;
  for (uint64_t i = 0; i < 30; ++i) requests.push_back(lone(512, 2, i, 100.0 * static_cast<double>(i)));
  for (uint64_t i = 0; i < 30; ++i) {
    PlannedRequest longer = lone(512, 2, i, 3000 + 100.0 * static_cast<double>(i));
    longer.prompt.push_back({1000 + i, 400});
    longer.input_tokens += 400;
    requests.push_back(longer);
  }
  const SimResult result = run(s, requests);
  for (size_t i = 0; i < 30; ++i) {
    EXPECT_EQ(result.records[i].replica, result.records[i + 30].replica);
    EXPECT_EQ(result.records[i + 30].cached, 512);
  }
  s.routing = Routing::round_robin;
  int64_t hits = 0;
  for (const SimRecord& r : run(s, requests).records) hits += r.cached > 0 ? 1 : 0;
  EXPECT_LT(hits, 30);
}

// Begun, waiting in a line, to arrive later and later turns of a session alike.
TEST(Fleet, WithoutAReplicaThatComesBackRequestsAreLost) {
  SimScenario s = test::small_scenario(kMany);
  s.failures = {{0, 3.5}};
  std::vector<PlannedRequest> requests = sessions(1, 2);
  requests.push_back(lone(1000, 5, 7, 0));
  requests.push_back(lone(1000, 5, 8, 50));
  for (PlannedRequest& r : requests) r.output_tokens = 5;
  for (const SimPacing pacing : {SimPacing::trace, SimPacing::users, SimPacing::poisson}) {
    s.pacing = pacing;
    s.rate_per_second = 0.1;
    const SimResult result = run(s, requests);
    EXPECT_EQ(result.summary.lost, 4);
    EXPECT_EQ(result.summary.not_sent, 0);
    EXPECT_EQ(sim_outcome_name(result.records[0].outcome), "lost");
    EXPECT_THAT(result.loss, testing::HasSubstr("3.5 s left no replica"));
  }
  s.pacing = SimPacing::trace;
  s.failures = {{0, 3.5, 1}};
  EXPECT_EQ(run(s, requests).summary.lost, 0);
}

TEST(Fleet, AFailureStartsItsRequestsAnew) {
  SimScenario s = test::small_scenario(kMany);
  s.failures = {{0, 3.5, 10}};
  const SimResult result = run(s, {lone(1000, 5, 7, 0)});
  const SimRecord& r = result.records[0];
  EXPECT_EQ(r.restarts, 1);
  EXPECT_EQ(r.lost_tokens, 3);  // at 2, 3 and, when the step under way had ended, 4 s
  EXPECT_EQ(r.generated, 5);
  EXPECT_NEAR(r.first_token, 2, kExact);
  EXPECT_NEAR(r.end, 13.5 + 2 + 4, kExact);
  // A second replica takes it at once, without the cache of the first.
  s.replicas = 2;
  s.failures = {{0, 3.5, 10}, {1, 3.5, 1000}};
  s.failures.resize(1);
  SimResult other = run(s, {lone(1000, 5, 7, 0)});
  if (other.records[0].restarts == 0) {  // it was on the second one
    s.failures[0].replica = 1;
    other = run(s, {lone(1000, 5, 7, 0)});
  }
  EXPECT_EQ(other.records[0].restarts, 1);
  EXPECT_NEAR(other.records[0].end, 4 + 2 + 4, kExact);
}

TEST(Fleet, WithoutRepairWhatWasThereEndsNowhere) {
  SimScenario s = test::small_scenario(kMany);
  s.failures = {{0, 3.5}};
  const SimResult result = run(s, {lone(1000, 5, 7, 0), lone(1000, 5, 8, 100)});
  EXPECT_EQ(result.summary.lost, 2);
  EXPECT_EQ(result.summary.generated_tokens, 0);
  EXPECT_EQ(result.summary.lost_tokens, 3);
}

TEST(Fleet, ARestartIsNoNewRequest) {
  SimScenario s = test::small_scenario(kMany);
  s.duration_seconds = 3;  // before it restarts
  s.failures = {{0, 3.5, 10}};
  EXPECT_EQ(run(s, {lone(1000, 5, 7, 0)}).summary.done, 1);
}

TEST(Fleet, FewerUsersThanReplicasLeaveNobodyInLine) {
  SimScenario s = test::small_scenario(kMany);
  s.replicas = 6;
  s.pacing = SimPacing::users;
  for (const int64_t users : {1, 2, 5, 6, 7, 50}) {
    s.users = users;
    EXPECT_EQ(run(s, sessions(30, 3)).summary.done, 90) << users;
  }
}

// Long prompts: one at a time in their budget, so that short ones get through.
TEST(Fleet, BudgetsKeepLongPromptsFromTheOthers) {
  SimScenario s = test::small_scenario(kMany);
  s.engine.core.step_tokens = 1000;
  const std::vector<PlannedRequest> requests = {lone(50'000, 2, 1, 0), lone(50'000, 2, 2, 0), lone(50'000, 2, 3, 0),
                                                lone(200, 2, 4, 1), lone(200, 2, 5, 80)};
  const SimResult open = run(s, requests);
  s.budgets = {{1000, 10}, {100'000, 60}};
  const SimResult budgeted = run(s, requests);
  EXPECT_EQ(budgeted.summary.done, 5);
  EXPECT_GE(budgeted.records[1].admitted, budgeted.records[0].first_token);
  EXPECT_GE(budgeted.records[2].admitted, budgeted.records[1].first_token);
  EXPECT_LT(budgeted.records[3].admitted, budgeted.records[1].admitted);
  EXPECT_LT(open.records[1].admitted, open.records[0].first_token);
}

TEST(Fleet, TheNumberOfThreadsChangesNothing) {
  SimScenario s = test::small_scenario(60, std::make_shared<test::FussyClock>());
  s.replicas = 7;
  s.pacing = SimPacing::poisson;
  s.rate_per_second = 20;
  s.failures = {{3, 1, 2}, {0, 2, 1}};
  const auto requests = sessions(60, 4);
  const SimResult one = run(s, requests);
  s.threads = 3;
  const SimResult three = run(s, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(one.records[i].end, three.records[i].end) << i;
    EXPECT_EQ(one.records[i].cached, three.records[i].cached) << i;
    EXPECT_EQ(one.records[i].replica, three.records[i].replica) << i;
  }
  EXPECT_EQ(one.summary.steps, three.summary.steps);
}

}  // namespace
}  // namespace k3::plan
