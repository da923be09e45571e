// Purpose:  routed experts as an export will store them, for quantisation-aware training: the forward reads these, the optimizer
//           changes the masters.
// Shapes:   beside the masters, element for element.
// Units:    none.
// Memory:   FP32 for the experts alone (the rest of the address range is never touched); on a GPU BF16 for all.
// Threads:  one.
// Errors:   create: exhausted.
// Source:   training.md 8: straight through, so gradients of these are gradients of the masters.
#pragma once

#include "k3/model/train/train_weights.h"
#include "k3/ops/tape.h"

namespace k3::train {

class QuantisedExperts {
 public:
  static Result<QuantisedExperts> create(TrainWeights& weights);
  // The forward reads quantised experts from now on; `grads` are the masters'.
  void attach(ops::Tape& tape, const Tensor& grads);
  // It reads the masters again, until the next attach().
  void detach();
  // After every step of the optimizer.
  void refresh(const ops::Ctx& ctx);
  bool attached() const { return attached_; }

 private:
  explicit QuantisedExperts(TrainWeights& weights) : weights_(&weights) {}
  // Matrices of one width that lie one behind the other: one call.
  struct Run {
    int64_t at, rows, cols;
  };
  // What the forward reads goes from one of two arenas of the same places to the other.
  void move_experts(const std::byte* from, std::byte* to);
  std::byte* masters() const { return weights_->device.is_cuda() ? weights_->compute.data() : weights_->arena.data(); }

  TrainWeights* weights_;
  std::vector<Run> runs_;
  Storage copies_;
  DType dtype_ = DType::f32;  // BF16 on a GPU: what MXFP4 stands for is exact in it
  bool attached_ = false;
};

}  // namespace k3::train
