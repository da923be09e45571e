// The options of `k3 plan`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "k3/base/result.h"

namespace CLI {
class App;
}

namespace k3::cli {

// Zero and empty: the default that --help tells.
struct PlanOptions {
  std::string config;
  std::string hw = "h200";
  int64_t gpus = 0;
  std::vector<std::string> set;
  std::vector<std::string> calibration;
  std::string calibration_model;

  std::optional<int64_t> tp, dp, pp, dcp, kcp;
  std::string moe;  // "", tp, ep
  bool sp = false, up_replicated = false;

  int64_t input = 8192, output = 1024, users = 0;
  std::optional<double> slo_ttft, slo_tpot_ms;
  double hit = 0;
  std::string hit_tier = "gpu";  // gpu | host | network

  std::string state = "f32", latent = "bf16", experts = "keep";
  int64_t slots = 1;

  int64_t draft = 0;
  std::string acceptance, fade;
  std::string scheme = "fused";  // snapshot | replay | fused

  std::optional<double> gpu_hour;
  bool sweep = false, explain = false, launch = false, check = false, json = false, cells = false;
  std::string html, plots, against;

  bool operator==(const PlanOptions&) const = default;
};

// The second scenario of --against: `base` with the options that its text gives.
Result<PlanOptions> against_options(const PlanOptions& base);

void add_plan_command(CLI::App& app, PlanOptions& options, Status& status);
Status plan_command(const PlanOptions& options);

}  // namespace k3::cli
