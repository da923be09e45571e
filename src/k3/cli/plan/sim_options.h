// The options of `k3 sim`.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "k3/base/result.h"
#include "k3/cli/plan/plan_options.h"

namespace CLI {
class App;
}

namespace k3::cli {

// Zero and empty: the default that --help tells.
struct SimOptions {
  PlanOptions plan;  // CONFIG, machine, layout, dtypes, speculation
  std::set<std::string> given;  // by long name, as "--users": those of the command line
  std::string trace;

  int64_t block_tokens = 512;  // of the trace
  double scale = 1;
  int64_t max_output = 0, max_input = 0, limit = 0;
  std::string sessions;
  bool made_up_answers = false;
  std::string input = "8192", output = "512";  // synthetic
  int64_t requests = 1000, turns = 1, shared_prefix = 0;
  uint64_t seed = 0;

  bool sequential = false, rule = false;
  std::optional<int64_t> users;
  std::optional<double> rate;
  double think_ms = 0, speed = 1, duration_s = 0;
  std::string recorded, recorded_order;
  std::string loads;

  std::string clock;  // file of measured steps
  double step_overhead_ms = 0;
  std::optional<double> request_ms;

  std::string policy = "serve", policies;
  std::optional<int64_t> ctx, max_running, step_tokens, cache_block;
  int64_t queue = 64;
  std::string schedule = "fcfs";
  bool no_keep_idle = false, no_prefix_cache = false, unbounded = false, together = false, apart = false;
  std::string pool_bytes, host_bytes, remote_bytes;
  std::optional<double> host_gbps, remote_gbps, transfer_gbps;
  double remote_ms = 0, transfer_ms = 0;

  int64_t replicas = 1, prefill = 0, decode = 0;
  std::string decode_with;  // options of k3 plan
  std::string routing = "affinity";
  std::vector<std::string> budgets, failures;
  std::optional<double> slo_ttft, slo_tpot_ms;
  int threads = 0;

  std::string name, json, csv, html, plots, against;
};

void add_sim_command(CLI::App& app, SimOptions& options, Status& status);
Status sim_command(const SimOptions& options);

}  // namespace k3::cli
