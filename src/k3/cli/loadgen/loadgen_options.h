// The options of `k3 loadgen`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "k3/base/result.h"

namespace CLI {
class App;
}

namespace k3::cli {

struct LoadgenOptions {
  std::string url, model, api_key_file;
  bool chat = false, no_ignore_eos = false, retry_429 = false;
  int64_t vocab = 0;  // 0: ask the server
  double temperature = 0;
  std::string body;  // a JSON object of further fields
  double timeout_s = 600, connect_timeout_s = 10;

  std::optional<std::string> trace;
  int64_t block_tokens = 512;
  double scale = 1;
  int64_t max_output = 0, max_input = 0, limit = 0;
  std::string sessions;

  std::string input = "512", output = "64";  // synthetic
  int64_t requests = 100, turns = 1, shared_prefix = 0;
  double think_ms = 0;
  uint64_t seed = 0;

  bool sequential = false;
  std::optional<int64_t> users;
  std::optional<double> rate;
  double speed = 1;
  double duration_s = 0;
  int64_t warmup = 0;

  bool json = false;
  std::string html;
};

void add_loadgen_command(CLI::App& app, LoadgenOptions& options, Status& status);
Status loadgen_command(const LoadgenOptions& options);

}  // namespace k3::cli
