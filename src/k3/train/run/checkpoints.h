// Purpose:  where a run can be resumed: weights, optimizer state, position, written so that a kill at any moment loses no more than
//           the steps since the last one.
// Shapes:   the arena and its two moments as FP32 arrays; state.json: step, best evaluation, hashes of config, model and data.
// Units:    steps.
// Memory:   none besides the buffers of a write.
// Threads:  one.
// Errors:   save: disk full and the like, with the path; the older checkpoint stays as it was. load: what is truncated or does not
//           belong to this config, with the file.
// Source:   a checkpoint is a folder that gets its name when everything in it is on the disk; the newest whole one counts. Kept: the
//           last and the best.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "k3/model/train/train_weights.h"

namespace k3::train {

struct RunState {
  int64_t step = 0;  // done
  double best_bits_per_byte = 0;
  int64_t best_step = -1;  // none yet
  double seconds = 0;      // of training, over all parts of the run
  std::string config_hash;
  // Of what the config names by path: the model's config and the manifest of the data. Empty: the checkpoint does not say.
  std::string model_hash{}, data_hash{};
};

// state.json of a checkpoint; `source` is for messages (corrupt: what is missing, or no number that may stand there).
std::string state_json(const RunState& state);
Result<RunState> parse_state(std::string_view json, const std::string& source);

class Checkpoints {
 public:
  explicit Checkpoints(std::string folder) : folder_(std::move(folder)) {}

  // Newest whole checkpoint: its step; none: the run begins.
  Result<std::optional<int64_t>> newest() const;
  // `first` and `second`: the optimizer's moments, in host memory.
  Result<RunState> load(int64_t step, TrainWeights& weights, const Tensor& first, const Tensor& second) const;
  // Then removes those that are neither the last nor the best.
  Status save(const RunState& state, const TrainWeights& weights, const Tensor& first, const Tensor& second) const;
  // Weights alone.
  Status load_weights(int64_t step, TrainWeights& weights) const;
  Result<RunState> read_state(int64_t step) const;
  std::string path(int64_t step) const;

 private:
  Status write(const std::string& unfinished, const RunState& state, const TrainWeights& weights, const Tensor& first, const Tensor& second) const;
  Result<std::vector<int64_t>> all() const;
  std::string folder_;
};

}  // namespace k3::train
