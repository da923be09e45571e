// The options of `k3 serve`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "k3/base/result.h"
#include "k3/cli/options.h"

namespace CLI {
class App;
}

namespace k3::cli {

struct ServeOptions {
  std::string model;
  std::string host = "127.0.0.1";
  int port = 8080;
  std::vector<std::string> names;  // of the model; empty: its folder's
  std::vector<std::string> allowed_hosts;
  std::string api_key_file, cors, param_policy = "open", metrics_compat = "none", max_body = "64MiB";
  bool strict_tools = false, developer = false, quiet = false;
  double drain_seconds = 30, ping_seconds = 0;

  std::string schedule = "fcfs", slot_save_path;
  int64_t max_running = 32, max_queued = 256;
  double deadline_seconds = 0;

  std::string pool_bytes, host_bytes, disk_bytes, disk_folder;  // "": the engine's
  int64_t block_tokens = 0;
  std::string state_dtype = "f32", conv_dtype, latent_dtype;  // "": as the policy computes
  std::vector<std::string> checkpoints = {"end", "turns", "second"};
  bool no_prefix_cache = false, no_keep_idle = false;
  ComputeOptions compute;
  int64_t lose_device_at = 0;  // tests, no option sets it: EngineOptions
};

// All but the model and the options of every command that computes.
void add_serve_options(CLI::App& app, ServeOptions& options);
Status serve_command(const ServeOptions& options);

}  // namespace k3::cli
