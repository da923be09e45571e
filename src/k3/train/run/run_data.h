// Purpose:  the prepared texts of a run: what is trained on, by phase, what is held out, and whether they fit the config.
// Shapes:   none.
// Units:    tokens.
// Memory:   owns the opened shards (mapped), which the batches borrow. Borrows the config.
// Threads:  batches_of() from one thread at a time; the rest is immutable.
// Errors:   open: what is missing or does not fit, with the folder or the config's field. Every phase is tried then, so batches_of() fails
//           later for want of memory alone.
// Source:   training.md; docs/training.md, section Data.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "k3/train/data/eval_windows.h"
#include "k3/train/data/packed_batches.h"
#include "k3/train/run/train_config.h"

namespace k3::train {

class RunData {
 public:
  static Result<RunData> open(const TrainConfig& config);

  const DataManifest& manifest() const { return manifest_; }
  const std::vector<std::pair<std::string, EvalWindows>>& held_out() const { return held_out_; }
  Result<PackedBatches> batches_of(size_t phase);

 private:
  explicit RunData(const TrainConfig& config) : config_(&config) {}
  Status open_held_out();
  Result<const TokenShards*> shards_of(const SourceInfo& info);

  const TrainConfig* config_;
  DataManifest manifest_;
  std::vector<std::unique_ptr<TokenShards>> shards_;
  std::vector<std::pair<std::string, EvalWindows>> held_out_;
};

}  // namespace k3::train
