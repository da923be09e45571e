// The parts of `k3 bench` that need neither a model nor a clock: the cross product, statistics, tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "k3/cli/bench/bench_cases.h"
#include "k3/cli/bench/bench_model.h"
#include "k3/cli/bench/ceilings.h"
#include "k3/cli/bench/route_counter.h"
#include "k3/cli/bench/samples.h"
#include "k3/cli/bench/stream_meter.h"
#include "k3/cli/bench/text_table.h"

namespace k3::cli {
namespace {

std::vector<std::string> labels(const std::vector<BenchCase>& cases) {
  std::vector<std::string> out;
  for (const BenchCase& c : cases) out.push_back(c.label());
  return out;
}

TEST(BenchCases, CrossProductInOrder) {
  BenchOptions o;
  o.prefill = {8, 16};
  o.decode = {4};
  o.depth = {0, 100};
  o.batch = {1, 4};
  o.threads = {2, 1};
  o.policies = {"bf16", "exact"};
  const std::vector<BenchCase> cases = bench_cases(o, 99);
  ASSERT_EQ(cases.size(), 2u * 2 * 2 * (2 * 2 + 2));
  EXPECT_THAT(
      labels({cases.begin(), cases.begin() + 6}),
      testing::ElementsAre("prefill 8", "prefill 16", "prefill 8 @100", "prefill 16 @100", "decode 4", "decode 4 @100"));
  // Threads outermost, then policy: a pool and a runner serve a run of neighbours.
  EXPECT_EQ(cases.front().threads, 2);
  EXPECT_EQ(cases.back().threads, 1);
  EXPECT_EQ(cases[6].batch, 4);
  EXPECT_EQ(cases[12].policy, "exact");
  EXPECT_EQ(cases[6].total_tokens(), 32);
  EXPECT_EQ(needed_ctx(cases), 116);
}

TEST(BenchCases, ZeroLeavesOut) {
  BenchOptions o;
  o.prefill = {0};
  o.decode = {5, 0};
  EXPECT_THAT(labels(bench_cases(o, 3)), testing::ElementsAre("decode 5"));
  EXPECT_EQ(bench_cases(o, 3).front().threads, 3);
  o.decode = {0};
  EXPECT_TRUE(bench_cases(o, 3).empty());
  EXPECT_EQ(needed_ctx({}), 1);
}

TEST(Samples, MedianAndSpread) {
  Samples s;
  EXPECT_EQ(s.median(), 0);
  EXPECT_EQ(s.spread(), 0);
  EXPECT_EQ(s.mad(), 0);
  for (const double value : {9.0, 1.0, 3.0}) s.add(value);
  EXPECT_EQ(s.median(), 3);
  EXPECT_EQ(s.min(), 1);
  EXPECT_EQ(s.max(), 9);
  EXPECT_EQ(s.mad(), 2);                    // of 6, 2, 0
  EXPECT_DOUBLE_EQ(s.spread(), 4.0 / 3.0);  // (9 - 1) / 2 over 3
  s.add(5);
  EXPECT_EQ(s.median(), 4);
}

TEST(StreamFigures, AreThoseOfTheRepetitions) {
  const StreamFigures f = stream_figures({1000, 10, 5}, {9000, 16, 7}, 4, 2, 8000);
  EXPECT_EQ(f.disk_bytes_per_token, 2000);
  EXPECT_EQ(f.disk_bytes_per_second, 4000);
  EXPECT_EQ(f.hit_rate, 0.75);
  EXPECT_EQ(f.direct_bytes_per_second, 8000);
  EXPECT_EQ(stream_figures({}, {}, 0, 0, 0).hit_rate, 1);  // nothing was wanted
}

TEST(RouteCounter, CountsDifferentLocalIds) {
  const std::vector<int32_t> ids = {5, 9, 5, 12, -1, 8, 11, 300};
  EXPECT_EQ(distinct_ids(ids, 0, 896), 6);
  EXPECT_EQ(distinct_ids(ids, 8, 4), 3);  // 8, 9, 11
  EXPECT_EQ(distinct_ids({}, 0, 8), 0);
}

TEST(BenchModel, OneOfCheckpointAndRandom) {
  BenchOptions o;
  const auto refused = [&](std::string_view what) {
    const Status status = check_bench_model(o);
    ASSERT_FALSE(status.ok()) << what;
    EXPECT_EQ(status.error().code, Code::invalid_argument);
    EXPECT_THAT(status.error().message, testing::HasSubstr(std::string(what)));
  };
  refused("--random CONFIG");
  o.model = "folder";
  EXPECT_TRUE(check_bench_model(o).ok());
  o.tp = 8;
  refused("--tp");
  o.random = "k3.json";
  refused("one of them");
  o.model = "";
  EXPECT_TRUE(check_bench_model(o).ok());
  o.set = {"experts=mxfp4"};
  o.ep = 8;
  o.rank = 1;
  EXPECT_EQ(bench_model_name(o), "random k3.json, experts=mxfp4, rank 1 of tp 8, ep 8");
  o.quality = "";
  refused("--quality");
}

TEST(TextTable, AlignsTextAndNumbers) {
  const TextTable table({{"test", 10, true}, {"rate", 6}, {"±", 5}});
  EXPECT_EQ(table.header(), "test          rate      ±\n");
  EXPECT_EQ(table.row({"a", "1.5", "± 2 %"}), "a              1.5  ± 2 %\n");
  EXPECT_EQ(table.width(), 25);
  EXPECT_EQ(table.row({"a", "", ""}), "a\n");
  EXPECT_EQ(table.markdown_header(), "| test       |   rate |     ± |\n|:---------- | ------:| -----:|\n");
  EXPECT_EQ(table.markdown_row({"a", "1.5", "± 2 %"}), "| a          |    1.5 | ± 2 % |\n");
}

TEST(Ceilings, KindsOfALevel) {
  std::vector<std::string> scalar, avx2;
  for (const CeilingKind& kind : ceiling_kinds(ops::Isa::scalar)) scalar.push_back(kind.label());
  for (const CeilingKind& kind : ceiling_kinds(ops::Isa::avx2)) avx2.push_back(kind.label());
  EXPECT_THAT(scalar, testing::ElementsAre("read", "fp32 scalar"));
  EXPECT_THAT(avx2, testing::ElementsAre("read", "fp32 scalar", "fp32 avx2"));
}

}  // namespace
}  // namespace k3::cli
