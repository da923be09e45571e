#include "k3/plan/report/sim_report.h"

#include <gmock/gmock.h>

#include "k3/base/report/xml_test_util.h"
#include "k3/plan/sim/sim_harness_test.h"

namespace k3::plan {
namespace {

using testing::HasSubstr;

// Everything that a report can hold, of five requests of which one is refused.
struct Lab {
  SimScenario scenario = test::small_scenario(400);
  Workload workload;
  SimResult result;

  Lab() {
    scenario.name = "a <b> \"c\"";
    scenario.engine.core.ctx_tokens = 2000;
    scenario.slo_ttft_seconds = 2.5;
    scenario.slo_tpot_seconds = 1.5;
    const std::vector<PlannedRequest> requests = {test::lone(1000, 5, 1, 0), test::lone(1000, 9, 1, 3),
                                                  test::lone(500, 1, 2, 4), test::lone(900, 3, 3, 30),
                                                  test::lone(3000, 2, 4, 31)};
    workload = make_workload(requests).value();
    result = simulate(scenario, workload).value();
  }
  SimReport report() const {
    SimReport r{"Simulation", "of a test", {{"model", "none & all"}}, scenario, workload, result, 4, {}, {}, {}};
    r.policies = {{"end", result.summary}, {"every", result.summary}};
    r.loads = {{"1 user", result.summary}, {"2 users", result.summary}};
    return r;
  }
};

TEST(SimReport, AnotherRunReadsItsJson) {
  const Lab lab;
  const SimDigest written = digest_of(lab.report());
  const SimDigest read = parse_other(sim_json(lab.report())).value();
  EXPECT_EQ(read.name, written.name);
  EXPECT_EQ(read.done, 4);
  EXPECT_EQ(read.ttft, written.ttft);
  EXPECT_EQ(read.tpot, written.tpot);
  EXPECT_EQ(read.queued, written.queued);
  EXPECT_EQ(read.running, written.running);
  EXPECT_EQ(read.series_step, written.series_step);
  EXPECT_DOUBLE_EQ(read.hit_ratio, written.hit_ratio);
  EXPECT_DOUBLE_EQ(read.output_per_second, written.output_per_second);
  ASSERT_EQ(read.loads.size(), 2u);
  EXPECT_EQ(read.loads[1].load, "2 users");
  EXPECT_EQ(read.loads[1].user_tokens_per_second, written.loads[1].user_tokens_per_second);
  EXPECT_EQ(read.loads[1].meets, written.loads[1].meets);
}

TEST(SimReport, WhatIsNoRunIsNamed) {
  const auto message = [](std::string_view json) { return parse_other(json).error().message; };
  EXPECT_THAT(message("[]"), HasSubstr("an array where an object belongs"));
  EXPECT_THAT(message("{}"), HasSubstr("is this the JSON of k3 sim?"));
  std::string json = sim_json(Lab().report());
  const std::string wrong = json.replace(json.find("\"hit_ratio\":") + 12, 1, "[],\"x\":0");
  EXPECT_THAT(message(wrong), HasSubstr("summary.hit_ratio: an array"));
}

TEST(SimReport, PageAndPlotsAreWellFormed) {
  const Lab lab;
  SimReport report = lab.report();
  report.against = digest_of(report);
  const std::string html = sim_html(report);
  EXPECT_EQ(test::xml_problem(html.substr(html.find('\n') + 1)), "");
  EXPECT_THAT(html, HasSubstr("a &lt;b&gt; &quot;c&quot;"));
  EXPECT_THAT(html, HasSubstr("refused"));
  EXPECT_EQ(html.find("nan"), std::string::npos);
  for (const SvgFile& file : sim_svgs(report)) EXPECT_EQ(test::xml_problem(file.text), "") << file.name;
  EXPECT_EQ(sim_svgs(report).size(), 8u);
}

TEST(SimReport, CsvHasALineForEachRequest) {
  const std::string csv = sim_csv(Lab().report());
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 6);
  EXPECT_THAT(csv, HasSubstr("\n0,-1,0,done,0,0,0,2,1.151,6.604,1000,5,0,0,nothing_cached,1000,0,0,0,0\n"));
  EXPECT_THAT(csv, HasSubstr("\n4,-1,0,refused,"));
}

TEST(SimReport, NothingAtAllIsStillAPage) {
  const Lab lab;
  SimScenario scenario = lab.scenario;
  scenario.engine.core.ctx_tokens = 10;
  const SimResult none = simulate(scenario, lab.workload).value();
  const SimReport report{"Simulation", "", {}, scenario, lab.workload, none, 0, {}, {}, {}};
  EXPECT_EQ(none.summary.refused, 5);
  const std::string html = sim_html(report);
  EXPECT_EQ(test::xml_problem(html.substr(html.find('\n') + 1)), "");
  EXPECT_EQ(html.find("nan"), std::string::npos);
  EXPECT_TRUE(parse_other(sim_json(report)).ok());
}

}  // namespace
}  // namespace k3::plan
