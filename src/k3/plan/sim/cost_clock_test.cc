// The clock of the cost model, alone and through a whole simulation; acceptance of drafted tokens.
#include "k3/plan/sim/cost_clock.h"

#include <gmock/gmock.h>

#include "k3/plan/cost/deployment_test.h"
#include "k3/plan/sim/sim_harness_test.h"

namespace k3::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Deployment eight_b300() {
  Layout layout;
  layout.tp = 8;
  layout.moe = MoeSharding::tp;
  return k3_on("B300-SXM", layout);
}

TEST(CostClock, IsTheCostModel) {
  const Deployment d = eight_b300();
  const auto clock = CostClock::create(d).value();
  const std::vector<StepPart> decodes = {{1, 1000, true}, {1, 5000, true}};
  const DecodeBatch batch{2, 3000};  // their mean
  EXPECT_EQ(clock->step_seconds(decodes), decode_step(d, batch).seconds);
  const std::vector<StepPart> prompts = {{4000, 0, false}, {300, 9000, false}};
  const PrefillSequence sequences[] = {{4000, 0}, {300, 9000}};
  EXPECT_EQ(clock->step_seconds(prompts), prefill_time(d, {sequences, 1}).seconds);
  std::vector<StepPart> both = decodes;
  both.insert(both.end(), prompts.begin(), prompts.end());
  EXPECT_DOUBLE_EQ(clock->step_seconds(both), clock->step_seconds(decodes) + clock->step_seconds(prompts));
}

TEST(CostClock, RefusesWhatIsNoDeployment) {
  Deployment d = eight_b300();
  d.layout.tp = 7;
  EXPECT_FALSE(CostClock::create(d).ok());
  d = eight_b300();
  d.hardware.hbm_bytes_per_second = 0;
  EXPECT_FALSE(CostClock::create(d).ok());
}

// Alone, a request takes its prefill and a decode step at each length that it comes through.
TEST(CostClock, ARequestAloneTakesWhatTheFormulasSay) {
  const Deployment d = eight_b300();
  SimScenario s = test::small_scenario(4000, CostClock::create(d).value());
  const SimResult result = test::run(s, {test::lone(8192, 101, 7, 0)});
  const PrefillSequence prompt{8192, 0};
  const double prefill = prefill_time(d, {std::span(&prompt, 1), 1}).seconds;
  EXPECT_NEAR(result.records[0].ttft(), prefill, 1e-12);
  double decode = 0;
  for (int i = 0; i < 100; ++i) decode += decode_step(d, {1, 8192.0 + i}).seconds;
  EXPECT_NEAR(result.records[0].end - result.records[0].first_token, decode, 1e-9);
}

// With stages, the first step after a pause fills the pipeline; those that follow come at the rate of a stage.
TEST(CostClock, APauseEmptiesThePipeline) {
  Layout layout;
  layout.tp = 8, layout.pp = 2;
  layout.moe = MoeSharding::tp;
  const Deployment d = k3_on("H200-SXM", layout);
  const auto clock = CostClock::create(d).value();
  const StepPart part{8192, 0, false};
  const PrefillSequence prompt{8192, 0};
  const PrefillTime time = prefill_time(d, {std::span(&prompt, 1), 4});
  EXPECT_GT(time.latency_seconds, time.seconds);
  EXPECT_EQ(clock->step_seconds(std::span(&part, 1)), time.seconds);
  EXPECT_EQ(clock->fill_seconds(std::span(&part, 1)), time.latency_seconds - time.seconds);
  SimScenario s = test::small_scenario(4000, clock);
  s.engine.core.step_tokens = 8192;
  const SimResult result = test::run(s, {test::lone(8192, 1, 1, 0), test::lone(8192, 1, 2, 0), test::lone(8192, 1, 3, 1000)});
  EXPECT_NEAR(result.records[0].ttft(), time.latency_seconds, 1e-12);
  EXPECT_NEAR(result.records[1].ttft(), time.latency_seconds + time.seconds, 1e-12);
  EXPECT_NEAR(result.records[2].ttft(), time.latency_seconds, 1e-9);
}

TEST(Acceptance, KeepsTheTokensOfAStep) {
  const Acceptance curve = Acceptance::of_lengths({1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88}).value();
  EXPECT_NEAR(curve.tokens_per_step(), 3.88, 1e-12);
  for (size_t i = 1; i < curve.accepted.size(); ++i) EXPECT_LE(curve.accepted[i], curve.accepted[i - 1]);
  EXPECT_THAT(Acceptance::of_alpha(0.5, 3).value().accepted, ElementsAre(0.5, 0.25, 0.125));
  EXPECT_FALSE(Acceptance().on());
  EXPECT_EQ(Acceptance().tokens_per_step(), 1);
  EXPECT_THAT(Acceptance::of_lengths({1.8, 1.7}).error().message, HasSubstr("1.7 tokens a step after 1.8"));
  EXPECT_FALSE(Acceptance::of_lengths({2.1}).ok());
  EXPECT_FALSE(Acceptance::of_alpha(1.1, 3).ok());
  EXPECT_FALSE(Acceptance::of_alpha(0.5, 0).ok());
}

}  // namespace
}  // namespace k3::plan
