// Purpose:  the training loop: batches, gradients, optimizer, evaluation, samples, checkpoints, log.
// Shapes:   none.
// Units:    steps, seconds.
// Memory:   weights, gradients and two moments in FP32, and the activations of a micro-batch. On a GPU all that lies there, with BF16
//           copies of the weights; the host has weights and moments to write and read checkpoints.
// Threads:  run() by one thread; the work inside is parallel.
// Errors:   create: what is wrong with config, data or tokenizer. run: a loss or gradient that is not a number (Code::internal would
//           blame the program: it is Code::exhausted of the recipe, named with step and parameter); a disk that is full; nothing of a
//           former checkpoint is lost.
// Source:   training.md; docs/training.md.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "k3/train/log/run_log.h"
#include "k3/train/run/checkpoints.h"
#include "k3/train/run/train_config.h"

namespace k3::train {

struct RunOptions {
  std::string folder;           // checkpoints, log, report
  Device device;
  double stop_after_seconds = 0;  // 0: never; then a checkpoint is written and the run can be resumed
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const StepRecord&, int64_t total_steps)> on_step;
  std::function<void(const EvaluationRecord&)> on_evaluation;
  std::function<void(const SampleRecord&)> on_sample;
  std::function<void(int64_t step)> on_checkpoint;
};

struct RunSummary {
  int64_t steps = 0;        // done in all
  bool finished = false;    // else it was stopped and can be resumed
  double seconds = 0;       // of training, over all parts
  double last_loss = 0;
};

class Trainer {
 public:
  // Resumes from the newest checkpoint of the folder, if there is one.
  static Result<std::unique_ptr<Trainer>> create(const TrainConfig& config, const RunOptions& options, ThreadPool& pool);
  ~Trainer();

  int64_t resumed_step() const;
  int64_t parameters() const;
  Result<RunSummary> run();

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Writes the weights of a run's checkpoint (step < 0: the best if `best`, else the newest) in the released layout, with its config and
// tokenizer.
Status export_run(const std::string& run_folder, const std::string& out_folder, int64_t step, bool best, int64_t shards);

}  // namespace k3::train
