// The options of `k3 train-tokenizer` and `k3 prepare`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "k3/base/result.h"

namespace CLI {
class App;
}

namespace k3::cli {

struct TrainTokenizerOptions {
  std::vector<std::string> files;  // FILE or FILE=WEIGHT
  std::string out;
  int64_t vocab = 0;
  double least_count = 2;
  int threads = 0;
  bool force = false, json = false;
};

struct PrepareCliOptions {
  std::vector<std::string> files, valid;
  std::string tokenizer, out;
  double holdout = 0;
  int64_t shard_tokens = int64_t{1} << 25;
  int threads = 0;
  bool force = false, json = false;
};

void add_data_commands(CLI::App& app, TrainTokenizerOptions& tokenizer, PrepareCliOptions& prepare, Status& status);
Status train_tokenizer_command(const TrainTokenizerOptions& options);
Status prepare_command(const PrepareCliOptions& options);

}  // namespace k3::cli
