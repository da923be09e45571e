#include "k3/plan/sim/fitted_clock.h"

#include <gmock/gmock.h>

#include <cmath>

namespace k3::plan {
namespace {

using testing::HasSubstr;

// The sums that a point tells of a step.
StepPoint step_point(std::span<const StepPart> parts, double seconds) {
  StepPoint out;
  for (const StepPart& part : parts) {
    if (part.decode) {
      ++out.decode_rows;
      out.decode_history_tokens += part.history_tokens;
    } else {
      ++out.prompts;
      out.new_tokens += part.new_tokens;
      out.key_pairs += static_cast<double>(part.new_tokens) *
                       (static_cast<double>(part.history_tokens) + static_cast<double>(part.new_tokens) / 2);
    }
  }
  out.seconds = seconds;
  return out;
}

// Weights read once for up to 16 tokens, then a cost for each; decodes read histories.
double law(const StepPoint& p) {
  const auto tokens = static_cast<double>(p.decode_rows + p.new_tokens);
  return 2e-3 * std::min(tokens, 16.0) + 1e-4 * tokens + 3e-8 * static_cast<double>(p.decode_history_tokens) +
         5e-10 * p.key_pairs;
}

std::vector<StepPoint> measured() {
  std::vector<StepPoint> points;
  for (const int64_t rows : {1, 2, 4, 8, 16, 32}) {
    for (const int64_t history : {100, 2000}) points.push_back({rows, rows * history, 0, 0, 0, 0});
  }
  for (const int64_t tokens : {8, 64, 256, 1024})
    points.push_back({0, 0, 1, tokens, static_cast<double>(tokens * tokens) / 2, 0});
  for (StepPoint& p : points) p.seconds = law(p);
  return points;
}

TEST(FittedClock, FindsALawThatItCanSay) {
  const auto clock = FittedClock::fit(measured()).value();
  EXPECT_LT(clock->largest_error(), 1e-6);
  const std::vector<StepPart> parts = {{1, 500, true}, {1, 900, true}, {1, 50, true}, {48, 16, false}};
  EXPECT_NEAR(clock->step_seconds(parts), law(step_point(parts, 0)), 0.02 * law(step_point(parts, 0)));
  const auto later = FittedClock::fit(measured(), 0.5).value();
  EXPECT_NEAR(later->step_seconds(parts) - clock->step_seconds(parts), 0.5, 1e-9);
}

// More work takes no less time, but once: where latents begin to be expanded.
TEST(FittedClock, HardlyRunsBackwards) {
  std::vector<StepPoint> points = measured();
  for (size_t i = 0; i < points.size(); ++i) points[i].seconds *= i % 2 == 0 ? 1.3 : 0.7;  // noise
  const auto clock = FittedClock::fit(points).value();
  double last = 0;
  int falls = 0;
  for (int64_t tokens = 1; tokens < 3000; tokens = tokens * 3 / 2 + 1) {
    const StepPart part{tokens, 0, false};
    const double seconds = clock->step_seconds(std::span(&part, 1));
    falls += seconds < last ? 1 : 0;
    last = seconds;
  }
  EXPECT_LE(falls, 1);
  for (int64_t rows = 1, before = 0; rows < 300; ++rows) {
    const std::vector<StepPart> parts(static_cast<size_t>(rows), StepPart{1, 500, true});
    EXPECT_GE(clock->step_seconds(parts), static_cast<double>(before) * 1e-9);
    before = static_cast<int64_t>(clock->step_seconds(parts) * 1e9);
  }
  EXPECT_GT(last, 0);
}

// Few new tokens read the latents as they are; for more than 64 they are expanded first, and a pair costs a fifth.
TEST(FittedClock, FindsFromHowManyNewTokensOnLatentsAreExpanded) {
  const auto seconds = [](int64_t tokens, int64_t history) {
    const double pairs = static_cast<double>(tokens) * (static_cast<double>(history) + static_cast<double>(tokens) / 2);
    return 1e-3 + 4e-5 * static_cast<double>(tokens) + (tokens <= 64 ? 1e-7 * pairs : 2e-8 * pairs + 3e-6 * static_cast<double>(history));
  };
  std::vector<StepPoint> points;
  for (const int64_t tokens : {16, 32, 64, 128, 256, 512}) {
    for (const int64_t history : {0, 512, 2048}) {
      const StepPart part{tokens, history, false};
      points.push_back(step_point(std::span(&part, 1), seconds(tokens, history)));
    }
  }
  const auto clock = FittedClock::fit(points).value();
  EXPECT_LT(clock->largest_error(), 1e-5);
  const std::vector<StepPart> both = {{48, 1000, false}, {200, 1500, false}};  // told apart within a step
  EXPECT_NEAR(clock->step_seconds(both), seconds(48, 1000) + seconds(200, 1500) - 1e-3, 0.02 * clock->step_seconds(both));
}

TEST(FittedClock, RefusesWhatIsNoMeasurement) {
  EXPECT_FALSE(FittedClock::fit({}).ok());
  EXPECT_THAT(FittedClock::fit({{1, 10, 0, 0, 0, 0}}).error().message, HasSubstr("point 0"));
  EXPECT_FALSE(FittedClock::fit({{1, 10, 0, 0, 0, NAN}}).ok());
  EXPECT_FALSE(FittedClock::fit({{0, 0, 0, 0, 0, 1}}).ok());
  EXPECT_FALSE(FittedClock::fit(measured(), -1).ok());
}

TEST(FittedClock, WantsPointsOfTheKindsThatAreNeeded) {
  const StepPoint decode{1, 10, 0, 0, 0, 1}, prompt{0, 0, 1, 64, 2048, 1};
  EXPECT_TRUE(check_kinds({decode, prompt}, true).ok());
  EXPECT_TRUE(check_kinds({prompt}, false).ok());
  EXPECT_THAT(check_kinds({prompt}, true).error().message, HasSubstr("only prompts are measured"));
  EXPECT_THAT(check_kinds({decode}, false).error().message, HasSubstr("only decodes are measured"));
}

TEST(FittedClock, ReadsPointsAndBenchResults) {
  const auto points = parse_points(R"({"points":[{"decode_rows":4,"decode_history_tokens":800,"seconds":0.02}]})").value();
  EXPECT_EQ(points[0].decode_rows, 4);
  const auto bench = parse_points(R"({"results":[
    {"test":"prefill","tokens":512,"depth":0,"batch":1,"threads":2,"seconds":[0.3,0.5,0.4]},
    {"test":"decode","tokens":64,"depth":1000,"batch":8,"threads":2,"seconds":[6.4,6.4]}]})")
                         .value();
  EXPECT_EQ(bench[0].new_tokens, 512);
  EXPECT_DOUBLE_EQ(bench[0].seconds, 0.4);
  EXPECT_DOUBLE_EQ(bench[0].key_pairs, 512.0 * 256);
  EXPECT_EQ(bench[1].decode_rows, 8);
  EXPECT_EQ(bench[1].decode_history_tokens, 8 * 1032);
  EXPECT_DOUBLE_EQ(bench[1].seconds, 0.1);
  const auto message = [](const char* json) { return parse_points(json).error().message; };
  EXPECT_THAT(message("{}"), HasSubstr("points"));
  EXPECT_THAT(message(R"({"points":[]})"), HasSubstr("empty list"));
  EXPECT_THAT(message(R"({"points":[{"seconds":1},3]})"), HasSubstr("points[1]"));
  EXPECT_THAT(message(R"({"points":[{"decode_rows":1}]})"), HasSubstr("points[0]: seconds"));
  EXPECT_THAT(message(R"({"points":[{"decode_rows":-1,"seconds":1}]})"), HasSubstr("decode_rows"));
  EXPECT_THAT(message(R"({"points":[{"decode_rows":1.5,"seconds":1}]})"), HasSubstr("decode_rows: '1.5' is no whole"));
  EXPECT_THAT(message(R"({"points":[{"decode_row":1,"seconds":1}]})"), HasSubstr("points[0]: decode_row: no such field"));
  EXPECT_THAT(message(R"({"results":[{"test":"other","seconds":[1]}]})"), HasSubstr("results[0]: test"));
  EXPECT_THAT(
      message(
          R"({"results":[{"test":"decode","tokens":1,"batch":1,"threads":1,"seconds":[1]},{"test":"decode","tokens":1,"batch":1,"threads":2,"seconds":[1]}]})"),
      HasSubstr("threads: 2 after 1"));
}

}  // namespace
}  // namespace k3::plan
