#include "k3/train/run/batch_feed.h"

#include <algorithm>
#include <new>

namespace k3::train {

BatchFeed::BatchFeed(const TrainConfig& config, Device device, int32_t pad, Open open, int64_t first_step)
    : config_(config), device_(device), pad_(pad), open_(std::move(open)), first_step_(first_step), thread_([this] { work(); }) {}

BatchFeed::~BatchFeed() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Status BatchFeed::make(int64_t step, StepBatches& out) {
  const TrainConfig::Place place = config_.place(step);
  if (place.phase != phase_) {
    K3_TRY_ASSIGN(batches_, open_(place.phase));
    phase_ = place.phase;
  }
  out.micros.resize(static_cast<size_t>(config_.phases[phase_].micro_batches));
  out.loss_tokens = out.tokens = 0;
  int64_t number = 0;
  for (StepBatches::Micro& micro : out.micros) {
    PackedBatch& batch = micro.batch;
    batches_->fill(step - place.first_step, number++, batch);
    micro.valid.resize(batch.tokens.size());
    for (size_t i = 0; i < batch.tokens.size(); ++i) micro.valid[i] = batch.tokens[i] != pad_ || batch.targets[i] >= 0 ? 1 : 0;
    micro.view = {batch.tokens, batch.targets, batch.offsets, micro.valid.data(), nullptr};
    if (device_.is_cuda()) {
      K3_TRY(micro.pinned.fill(micro.view, config_.model.vocab_size));
      micro.view.pinned = &micro.pinned;
    }
    out.loss_tokens += batch.loss_tokens;
    out.tokens += static_cast<int64_t>(batch.tokens.size());
  }
  return {};
}

void BatchFeed::work() {
  Status status = device_.is_cuda() ? set_current_device(device_) : Status();
  const int64_t steps = config_.total_steps() - first_step_;
  for (int64_t n = 0; n < steps && status.ok(); ++n) {
    {
      // The slot of step n is that of n - kSlots, which is out of use when the step behind it was asked for.
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || n < kSlots || asked_ > n - kSlots + 1; });
      if (stop_) return;
    }
    try {
      status = make(first_step_ + n, slots_[n % kSlots]);
    } catch (const std::bad_alloc&) {  // out of a thread it would end the program
      status = fail(Code::exhausted, "no memory for the batches of step {}: fewer tokens_per_step need less", first_step_ + n + 1);
    }
    const std::lock_guard lock(mutex_);
    if (status.ok()) made_ = n + 1;
    changed_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  failed_ = std::move(status);
  changed_.notify_all();
}

Result<StepBatches*> BatchFeed::next() {
  std::unique_lock lock(mutex_);
  const int64_t n = asked_++;
  K3_CHECK(first_step_ + n < config_.total_steps(), "batches of step {} of {}", first_step_ + n, config_.total_steps());
  changed_.notify_all();
  changed_.wait(lock, [&] { return made_ > n || !failed_.ok(); });
  if (made_ <= n) return failed_.error();
  return &slots_[n % kSlots];
}

}  // namespace k3::train
