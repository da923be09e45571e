// Purpose:  a loaded model and a runner that feeds it tokens.
// Shapes:   logits rows [vocab] f32.
// Units:    tokens.
// Memory:   Model owns weights; Runner owns caches, workspace and logits. With LoadOptions::ram all of them together, and
//           the program, stay within the plan; a Runner of such a model takes its scratch at create.
// Threads:  a Model may serve several Runners (steps of a model that reads from disk take turns); a Runner is used by one
//           thread.
// Errors:   load: what the checkpoint or config is wrong about; exhausted with the arithmetic when the plan cannot work.
//           feed, step: invalid_argument for ids outside the vocabulary and sequences that do not exist or stand twice,
//           exhausted when the context is full (nothing is computed then). A read that fails in the middle of a step fails
//           the step and breaks its sequences: they are refused (unavailable) until reset; others go on.
// Source:   model.md 3.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "k3/format/checkpoint.h"
#include "k3/format/config.h"
#include "k3/model/forward.h"
#include "k3/model/gpu/gpu_plan.h"
#include "k3/model/run/sequence.h"
#include "k3/model/run/stepper.h"
#include "k3/model/stream/weight_stream.h"
#include "k3/model/weights.h"
#include "k3/ops/ctx.h"

namespace k3 {

struct LoadOptions {
  Device device;  // where weights, caches and computing are
  // Most memory of model, runner and program: absent: everything in memory if it fits, else as much as there is.
  std::optional<int64_t> ram_bytes;
  bool ram_auto = false;  // what the system and its control groups have left
  // On a GPU: most of its memory; ram_bytes is then the most pinned host memory. Absent: all that is free, if the model needs it.
  std::optional<int64_t> vram_bytes;
  GpuPoolRequest pool;    // of a serving engine on a GPU
  PlanRequest run;        // sizes of the Runner to come; limit_bytes is set by load
  StreamOptions stream;
  LoadProgress progress;
  std::function<void(const std::vector<PlanLine>&, int64_t streamed_read_bytes)> on_plan;  // before anything is loaded; not called for the ordinary loader
};

class Model {
 public:
  // A folder, or its config.json.
  static Result<Model> load(const std::string& path, ThreadPool& pool, const LoadProgress& progress = {});
  static Result<Model> load(const std::string& path, ThreadPool& pool, const LoadOptions& options);
  // Without a checkpoint, for benches: weights by the init rules of the parameter table, made where they are to lie.
  static Result<Model> random(const Config& config, uint64_t seed, Device device, ThreadPool& pool, const LoadProgress& progress = {});

  const Config& config() const { return config_; }
  const WeightSet& weights() const { return weights_; }  // empty when they come through a stream
  WeightSource source() const { return {&weights_, stream_.get()}; }
  // With LoadOptions::ram or vram, or when the model did not fit: what was promised. gpu_plan: the whole of it, on a GPU.
  const std::optional<MemoryPlan>& plan() const { return plan_; }
  const std::optional<GpuPlan>& gpu_plan() const { return gpu_plan_; }
  std::optional<StreamStats> stream_stats() const;  // of a model that reads from disk
  Result<std::optional<ops::ExpertStoreStats>> expert_store_stats() const;  // of a model larger than its GPU
  Status save_expert_stats() const;                 // to StreamOptions::expert_stats, if that was given and experts are counted
  Device device() const { return device_; }
  const std::string& folder() const { return folder_; }
  Status check_ids(std::span<const int32_t> ids) const;

 private:
  Device device_;
  Config config_;
  WeightSet weights_;
  std::optional<MemoryPlan> plan_;
  std::optional<GpuPlan> gpu_plan_;
  std::unique_ptr<WeightStream> stream_;
  std::string folder_;
  std::string expert_stats_;            // on a GPU: the file, and what it said at the start
  std::vector<uint64_t> earlier_uses_;
};

// The folder of a model path that may be the folder or its config file.
std::string model_folder(const std::string& path);

struct RunnerOptions : ComputeMode {
  int64_t sequences = 1;
  int64_t ctx_tokens = 8192;
  int64_t chunk_tokens = 512;  // most tokens of one forward; bounds the workspace
  SequenceDtypes dtypes = {};
};

// The tokens of one sequence in a step; which of them want logits.
struct StepInput {
  int32_t sequence = 0;
  std::span<const int32_t> tokens;
  using Logits = WantLogits;
  Logits logits = Logits::last;
  RowChoice choice = {};  // of its rows of logits, where can_choose()
};

class Runner {
 public:
  static Result<Runner> create(const Model& model, ThreadPool& pool, const RunnerOptions& options);

  // One forward over all inputs; returns the logits rows in order, valid until the next call.
  Result<Tensor> step(std::span<const StepInput> inputs);

  // For benches: Stepper::time_part over a step that is not taken.
  Result<double> time_part(std::span<const StepInput> inputs, const Stepper::Part& part, int64_t repeats);

  // Feeds one sequence in chunks; the logits of the last token, from which `choice` may choose. `progress` hears the tokens done and may answer
  // false to stop between chunks (cancelled; the tokens so far are in the cache).
  Result<std::span<const float>> feed(int32_t sequence, std::span<const int32_t> tokens,
                                      const std::function<bool(int64_t done_tokens)>& progress = {}, const RowChoice& choice = {});
  bool can_choose() const { return stepper_.can_choose(); }
  std::span<const ops::cuda::ChosenRow> chosen() const { return stepper_.chosen(); }  // of the last step: Stepper::chosen

  void reset(int32_t sequence);
  // For benches: every sequence with so many tokens of history that no model has read; see SequencePool::pretend.
  Status pretend_history(int64_t tokens, uint64_t seed);
  // A sequence as bytes, exact to the bit; unavailable when a step of it failed half-way. restore: exhausted when the context
  // is shorter; after an error of `read` the sequence is reset.
  Status save(int32_t sequence, const std::function<Status(std::span<const std::byte>)>& write) const;
  Status restore(int32_t sequence, int64_t tokens, const std::function<Status(std::span<std::byte>)>& read);
  int64_t length(int32_t sequence) const { return cache_.length(sequence); }
  int64_t room(int32_t sequence) const { return cache_.room(sequence); }
  const RunnerOptions& options() const { return options_; }
  const Model& model() const { return stepper_.model(); }
  ops::Ctx& ctx() { return stepper_.ctx(); }
  Stepper& stepper() { return stepper_; }

 private:
  Runner(Stepper stepper, const RunnerOptions& options, SequencePool cache);
  Status check_sequence(int32_t sequence) const;
  Status flatten(std::span<const StepInput> inputs);  // into flat_ and sequences_, checked

  Stepper stepper_;
  RunnerOptions options_;
  SequencePool cache_;
  std::vector<bool> broken_;  // by sequence: a step failed half-way
  FlatStep flat_;
  std::vector<int32_t> sequences_;
};

}  // namespace k3
