// What k3 bench and k3 loadgen write, as points; and what is no such file.
#include "k3/plan/calibrate/measured_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace k3::plan {
namespace {

using testing::HasSubstr;
using Kind = MeasuredPoint::Kind;

const std::string kBench =
    R"({"model":"m","parameters":3e7,"results":[)"
    R"({"test":"decode","tokens":64,"depth":1000,"batch":4,"threads":2,"policy":"bf16","seconds":[0.64,0.6,0.7]},)"
    R"({"test":"prefill","tokens":512,"depth":128,"batch":1,"threads":2,"policy":"bf16","seconds":[0.1]}]})";
const std::string kLoadgen =
    R"({"settings":{"pacing":"8 users, closed loop"},"summary":{"ok":10,"prompt_tokens":5000,"output_tokens":640,)"
    R"("cached_tokens":1000,"ttft_s":{"p50":0.2,"p95":0.3},"tpot_s":{"p50":0.01,"p95":0.011}}})";

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(MeasuredRuns, ReadsABench) {
  const auto points = parse_measured_run(kBench, "a/bench.json");
  ASSERT_TRUE(points.ok()) << points.error().message;
  ASSERT_EQ(points->size(), 2u);
  const MeasuredPoint& decode = (*points)[0];
  EXPECT_EQ(decode.kind, Kind::decode_step);
  EXPECT_EQ(decode.users, 4);
  EXPECT_EQ(decode.context, 1032);  // half of the 64 tokens behind the depth
  EXPECT_DOUBLE_EQ(decode.seconds, 0.64 / 64);
  EXPECT_DOUBLE_EQ(decode.spread, 0.05 / 0.64);
  EXPECT_EQ(decode.parameters, 3e7);
  EXPECT_EQ(decode.name, "bench.json: decode of 4 at 1,032");
  const MeasuredPoint& prefill = (*points)[1];
  EXPECT_EQ(prefill.kind, Kind::prefill);
  EXPECT_EQ(prefill.input, 512);
  EXPECT_EQ(prefill.past, 128);
  EXPECT_DOUBLE_EQ(prefill.seconds, 0.1);
}

TEST(MeasuredRuns, ReadsALoad) {
  const auto points = parse_measured_run(kLoadgen, "load.json");
  ASSERT_TRUE(points.ok()) << points.error().message;
  ASSERT_EQ(points->size(), 2u);
  EXPECT_EQ((*points)[0].kind, Kind::ttft);
  EXPECT_EQ((*points)[0].users, 8);
  EXPECT_DOUBLE_EQ((*points)[0].input, 400);  // without the 100 from the cache
  EXPECT_DOUBLE_EQ((*points)[0].past, 100);
  EXPECT_DOUBLE_EQ((*points)[0].output, 64);
  EXPECT_DOUBLE_EQ((*points)[0].seconds, 0.2);
  EXPECT_EQ((*points)[1].kind, Kind::tpot);
  EXPECT_NEAR((*points)[1].spread, 0.1 / std::sqrt(10.0), 1e-12);
  const auto alone = parse_measured_run(replaced(kLoadgen, "8 users, closed loop", "one at a time"), "load.json");
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ((*alone)[0].users, 1);
  const auto one = parse_measured_run(replaced(kLoadgen, "8 users, closed loop", "one user, closed loop"), "load.json");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ((*one)[0].users, 1);
  // Answers of one token have no TPOT.
  const auto lone =
      parse_measured_run(replaced(kLoadgen, R"({"p50":0.01,"p95":0.011})", R"({"p50":null,"p95":null})"), "load.json");
  ASSERT_TRUE(lone.ok()) << lone.error().message;
  EXPECT_EQ(lone->size(), 1u);
}

TEST(MeasuredRuns, ErrorsNameFileAndField) {
  const auto says = [](const std::string& json) {
    const auto points = parse_measured_run(json, "run.json");
    return points.ok() ? std::string("accepted") : points.error().message;
  };
  EXPECT_THAT(says("[1]"), HasSubstr("run.json: neither the JSON of k3 bench"));
  EXPECT_THAT(says("{"), HasSubstr("run.json: "));
  EXPECT_THAT(says(replaced(kBench, "[0.1]", "[]")), HasSubstr("results[1].seconds is missing"));
  EXPECT_THAT(says(replaced(kBench, "[0.1]", "[0]")), HasSubstr("results[1].seconds holds 0; seconds above 0"));
  EXPECT_THAT(says(replaced(kBench, "\"batch\":4", "\"batch\":0")), HasSubstr("results[0].batch is 0; a number from 1"));
  EXPECT_THAT(says(replaced(kBench, "\"batch\":4", "\"batch\":\"4\"")), HasSubstr("results[0].batch is \"4\"; a number"));
  EXPECT_THAT(says(replaced(kBench, "\"test\":\"decode\"", "\"test\":\"walk\"")), HasSubstr("results[0].test is 'walk'"));
  EXPECT_THAT(says(replaced(kBench, "\"threads\":2", "\"threads\":1")), HasSubstr("differs from the result before"));
  EXPECT_THAT(says(replaced(kBench, "3e7", "0")), HasSubstr("run.json: parameters is 0"));
  EXPECT_THAT(says(replaced(kLoadgen, "8 users, closed loop", "4 arrivals a second (Poisson)")),
              HasSubstr("closed loops alone"));
  for (const char* pacing : {"one zillion", "one ", "8 users", "users, closed loop", "0 users, closed loop"}) {
    EXPECT_THAT(says(replaced(kLoadgen, "8 users, closed loop", pacing)), HasSubstr("closed loops alone")) << pacing;
  }
  EXPECT_THAT(says(replaced(kLoadgen, "\"ok\":10", "\"ok\":0")), HasSubstr("summary.ok is 0"));
  EXPECT_THAT(says(replaced(kLoadgen, "\"cached_tokens\":1000", "\"cached_tokens\":6000")),
              HasSubstr("summary.cached_tokens is 6000"));
}

}  // namespace
}  // namespace k3::plan
