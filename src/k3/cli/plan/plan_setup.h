// From the options of `k3 plan` to a scenario of the planner.
#pragma once

#include <optional>
#include <string>

#include "k3/cli/plan/plan_options.h"
#include "k3/format/config.h"
#include "k3/plan/advise/scenario.h"
#include "k3/plan/calibrate/calibrate.h"
#include "k3/plan/published/check.h"

namespace k3::cli {

struct PlanSetup {
  plan::Scenario scenario;
  Config config;
  bool model_is_folder = false;
  bool experts_converted = false;  // --experts says otherwise than CONFIG
  bool default_objective = false;  // neither users nor an objective were given
  bool gpus_chosen = false;        // --gpus was not given
  std::optional<plan::Calibration> calibration;
};

// Most GPUs that are tried when their number is not given.
inline constexpr int64_t kMostGpusTried = 64;
// The objective when nothing is asked: a fast reader.
inline constexpr double kDefaultTpotSeconds = 0.05;

Result<PlanSetup> plan_setup(const PlanOptions& options);

// Published measurements against the model as it comes: of K3, whatever is planned.
Result<plan::Check> published_check();

// A folder, a config.json or the name of a known model.
Result<Config> plan_config(const std::string& name, std::string* source);

}  // namespace k3::cli
