// Purpose:  loss and gradients of a model for the tokens of one micro-batch.
// Shapes:   tokens, targets [T] (-1: no loss); offsets [B + 1]: where sequences begin (documents packed one after another).
// Units:    nats.
// Memory:   gradients lie beside the parameters, element for element, and are added to. Activations of a micro-batch stay in the
//           workspace until its backward; with `recompute` only the inputs of sub-layers do.
// Threads:  one call at a time; the work inside is parallel.
// Errors:   those of the model's forward (none with weights in memory). On a GPU nothing waits in add(): its losses and errors come with
//           take_nats().
// Source:   architecture 4, training.md 7.
#pragma once

#include "k3/model/batch.h"
#include "k3/model/train/train_weights.h"
#include "k3/ops/cross_entropy/cross_entropy.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/tape.h"
#include "k3/train/run/device_batch.h"
#include "k3/train/run/steps_ahead.h"

namespace k3::train {

class Gradient {
 public:
  // `weights` stays where it is; `grads` [weights.elements] of its dtype.
  Gradient(TrainWeights& weights, const Tensor& grads, ThreadPool& pool);
  // What a GPU wants besides; nothing on the CPU.
  Status open();

  ops::Tape& tape() { return tape_; }
  ops::Ctx& ctx() { return ctx_; }
  // Forward and backward: gradients of scale times the summed nats.
  ops::CrossEntropy add(const MicroBatch& batch, double scale);  // on a GPU its nats are 0
  // What already went wrong in add(), without waiting.
  Status queued();
  // The losses of add() since the last call are a step's. Up to kStepsAhead steps may be closed and not taken.
  Status close_step();
  // Sum of the losses of the oldest step that was closed (of what was added, when none was); waits for that step, not for those behind it.
  Result<double> take_nats();
  // Forward alone.
  ops::CrossEntropy loss(const MicroBatch& batch);
  // The likeliest token after these.
  int32_t likeliest(std::span<const int32_t> tokens);
  // Logits of all tokens [T, vocab] where the weights are (FP32 on a GPU), valid until the next call.
  Tensor logits(const MicroBatch& batch);

 private:
  enum Sum : int64_t { kTrained, kMeasured };  // losses of add() and of loss()

  Tensor forward(const MicroBatch& batch, Batch& step, std::vector<int64_t>& history);
  Tensor logits_of(const Tensor& hidden);
  bool stage(const MicroBatch& batch, Sum sum);
  Status fetch(Sum sum, int64_t to);
  Result<double> fetched(int64_t at);
  Result<double> measured();
  bool on_gpu() const { return weights_.device.is_cuda(); }

  TrainWeights& weights_;
  // On a GPU; things that are in use on the stream until it is freed come after it.
  StreamHandle stream_;
  ops::cuda::OpStateHandle state_;
  DeviceBatch staged_;
  // Sums of losses. On a GPU: of add() and of loss() there, then pinned, of the steps in turn and of loss().
  Storage sums_, fetched_;
  EventHandle copied_[kStepsAhead];
  int64_t closed_ = 0, taken_ = 0;  // steps
  Status error_;
  double nats_ = 0;                  // on the CPU: of add(), and of the steps in turn
  double step_nats_[kStepsAhead] = {};
  Workspace workspace_;
  ops::Tape tape_;
  ops::Ctx ctx_;
};

}  // namespace k3::train
