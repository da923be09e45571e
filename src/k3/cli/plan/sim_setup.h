// From the options of `k3 sim` to a workload and a scenario.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/cli/plan/sim_options.h"
#include "k3/plan/sim/sim_scenario.h"
#include "k3/plan/sim/workload.h"

namespace k3::cli {

inline constexpr std::string_view kSynthetic = "synthetic";  // in the place of a trace

struct SimSetup {
  plan::Workload workload;
  plan::SimScenario scenario;
  std::vector<std::pair<std::string, std::string>> settings;
  std::string subtitle, clock_note;
  std::vector<std::string> notes;  // for the user to know, of what was given
  int64_t gpus = 0;  // of the whole fleet; 0: measured steps, no such count
};

Result<SimSetup> sim_setup(const SimOptions& options);

}  // namespace k3::cli
