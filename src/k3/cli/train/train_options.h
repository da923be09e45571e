// The options of `k3 train` and `k3 export`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "k3/base/result.h"

namespace CLI {
class App;
}

namespace k3::cli {

inline constexpr int64_t kMostShards = 99999;  // of a model: the names of the files have five digits

struct TrainOptions {
  std::string config, out, device = "cpu";
  std::vector<std::string> set;
  double stop_after = 0;
  int threads = 0;
  bool json = false, quiet = false, batches = false;
};

struct ExportOptions {
  std::string run, out;
  int64_t step = -1, shards = 1;
  bool best = false, force = false;
};

void add_train_commands(CLI::App& app, TrainOptions& train, ExportOptions& exporting, Status& status);
Status train_command(const TrainOptions& options);
Status export_command(const ExportOptions& options);

}  // namespace k3::cli
