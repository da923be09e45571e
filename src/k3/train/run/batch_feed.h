// Purpose:  the batches of the steps to come, made by a thread while the steps before them are computed.
// Shapes:   those of PackedBatch, a step's micro-batches together.
// Units:    tokens.
// Memory:   kSlots steps of batches; on a GPU pinned copies of them, sorted for the embedding's gradient.
// Threads:  next() by one thread; `open` is called by the feed's own thread.
// Errors:   next: those of `open`, and of pinned memory; exhausted where a batch finds no memory.
// Source:   batches are a pure function of the step's number, so what was made ahead and is not used is simply made again by the run that
//           resumes. What the thread is there for besides: pages of shards that are not in memory yet.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "k3/train/data/packed_batches.h"
#include "k3/train/run/device_batch.h"
#include "k3/train/run/train_config.h"

namespace k3::train {

struct StepBatches {
  struct Micro {
    PackedBatch batch;
    std::vector<uint8_t> valid;
    PinnedBatch pinned;
    MicroBatch view;  // of the three
  };
  std::vector<Micro> micros;
  int64_t loss_tokens = 0, tokens = 0;
};

class BatchFeed {
 public:
  using Open = std::function<Result<PackedBatches>(size_t phase)>;
  // Begins at once, at `first_step` of the run.
  BatchFeed(const TrainConfig& config, Device device, int32_t pad, Open open, int64_t first_step);
  ~BatchFeed();
  BatchFeed(const BatchFeed&) = delete;
  BatchFeed& operator=(const BatchFeed&) = delete;

  // Of the next step; valid until the next call. Not to be called more often than there are steps.
  Result<StepBatches*> next();

 private:
  static constexpr int64_t kSlots = 3;  // one in use, one ready, one being made

  void work();
  Status make(int64_t step, StepBatches& out);

  const TrainConfig& config_;
  Device device_;
  int32_t pad_;
  Open open_;
  std::optional<PackedBatches> batches_;  // of phase_
  size_t phase_ = static_cast<size_t>(-1);

  StepBatches slots_[kSlots];
  int64_t first_step_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t made_ = 0, asked_ = 0;  // steps since first_step_
  Status failed_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace k3::train
