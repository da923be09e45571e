// Purpose:  a question to the planner: which model on which machines under which load, and what is left to choose.
// Shapes:   none.
// Units:    tokens, seconds, bytes for each value (Precision), any currency for prices.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   layouts_of: invalid_argument, why no layout fits what was given; deployments pass validate()
// (plan/cost/validate.h). Source:   cost-model.md 7, 8.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "k3/base/result.h"
#include "k3/plan/cost/deployment.h"
#include "k3/plan/cost/speculation.h"
#include "k3/plan/hardware/hardware_file.h"

namespace k3::plan {

enum class Tier { gpu, host, network };  // where a reused prefix lies

struct Load {
  int64_t input_tokens = 8192, output_tokens = 1024;
  int64_t users = 0;  // 0: all that fit and meet the objective
  double hit = 0;     // share of the input that is in a prefix cache
  Tier tier = Tier::gpu;

  int64_t hit_tokens() const { return static_cast<int64_t>(hit * static_cast<double>(input_tokens)); }
  int64_t new_tokens() const { return std::max<int64_t>(1, input_tokens - hit_tokens()); }
  int64_t total_tokens() const { return input_tokens + output_tokens; }
  double mean_context() const { return static_cast<double>(input_tokens) + static_cast<double>(output_tokens) / 2; }
};

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();
struct Objective {
  double ttft_seconds = kNoLimit, tpot_seconds = kNoLimit;  // of the 95th percentile
};

struct Drafting {
  int64_t tokens = 0;  // 0: none
  AcceptanceCurve acceptance;
  SpeculationScheme scheme = SpeculationScheme::fused;
};

// What is given of a layout; the rest is chosen.
struct LayoutWish {
  std::optional<int64_t> tp, dp, pp, dcp, kcp;
  std::optional<MoeSharding> moe;
  bool sp = false, up_sharded = true;
};

// Measured over predicted times, between which the measurements lie that the band stands on.
struct Band {
  double low = 1, high = 1;
  std::string source;  // what it stands on, for people
};

std::string multiple_text(double factor);  // "0.96", "12.4", "0.0125"

struct Scenario {
  std::string model;
  std::string name;  // beside another scenario; empty: that of its machines
  Counts counts;
  Machine machine;
  Precision precision;
  int64_t gpus = 0;
  LayoutWish wish;
  Load load;
  Objective objective;
  Drafting draft;
  double slots = 1;
  double gpu_hour = 0;  // price; 0: not told
  Band band;
};

// States held for a request: Scenario::slots, and what speculation keeps besides.
double slots_of(const Scenario& scenario);

Deployment deployment_of(const Scenario& scenario, const Layout& layout);

// Every layout of scenario.gpus that has what was wished and that the model can have; never empty.
Result<std::vector<Layout>> layouts_of(const Scenario& scenario);

std::string scenario_name(const Scenario& scenario);  // "16 H200-SXM"
std::string layout_text(const Layout& layout);        // "TP8 PP2 EP", "TP8 DP2 EP DCP8"

}  // namespace k3::plan
