// Purpose:  what a simulation is told as: JSON and CSV for programs, one HTML page, and the part of another run's JSON that
// a
//           comparison needs.
// Shapes:   quantiles at 0, 1, .. 100 %.
// Units:    seconds, tokens, pages, bytes, as the field names say.
// Memory:   the text; views of the results.
// Threads:  pure functions.
// Errors:   parse_other: invalid_argument naming the field.
// Source:   docs/simulator.md names the fields.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/base/report/html_report.h"
#include "k3/plan/report/plan_html.h"
#include "k3/plan/sim/sim_result.h"

namespace k3::plan {

// Of a run at some load.
struct LoadDigest {
  std::string load;
  double user_tokens_per_second = 0;  // 1 / TPOT p50; 0: no TPOT
  double output_per_second = 0;       // of a GPU where their number is known
  double ttft_p95 = 0;
  bool meets = true;  // the objective, in p95
};

// What a comparison needs of a run.
struct SimDigest {
  std::string name;
  double hit_ratio = 0, seconds = 0, goodput_per_second = 0, output_per_second = 0;
  int64_t requests = 0, done = 0, preemptions = 0;
  std::vector<double> ttft, tpot;  // quantiles in percent steps; empty: none
  double series_step = 0;
  std::vector<double> queued, running;
  std::vector<LoadDigest> loads;
};
Result<SimDigest> parse_other(std::string_view json);

// One checkpoint policy of several on the same requests.
struct PolicyPoint {
  std::string policy;
  SimSummary summary;
};

// One load of several with the same requests: "8 users".
struct LoadPoint {
  std::string load;
  SimSummary summary;
};

struct SimReport {
  std::string title, subtitle;
  std::vector<std::pair<std::string, std::string>> settings;
  const SimScenario& scenario;
  const Workload& workload;
  const SimResult& result;
  int64_t gpus = 0;  // of the fleet; 0: steps as measured, no such number
  std::vector<PolicyPoint> policies;
  std::vector<LoadPoint> loads;
  std::optional<SimDigest> against;
};
SimDigest digest_of(const SimReport& report);

inline constexpr size_t kMostJsonRequests = 100'000;  // a longer list is left out: --csv has them all

ReportTable against_table(const SimDigest& one, const SimDigest& other);

std::string sim_json(const SimReport& report);
std::string sim_csv(const SimReport& report);
std::string sim_html(const SimReport& report);
std::vector<SvgFile> sim_svgs(const SimReport& report);  // the page's plots, a file each

}  // namespace k3::plan
