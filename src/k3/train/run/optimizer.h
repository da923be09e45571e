// Purpose:  the optimizer of a run: which parameters Muon, AdamW and the router's balancing change, and their state.
// Shapes:   one or two numbers a parameter, beside it: momentum (Muon) or first moment, and second moment (AdamW).
// Units:    none.
// Memory:   state of the size of the weights, twice, where these are. On a GPU the BF16 copies are made anew with the weights.
// Threads:  one step at a time; the work inside is parallel.
// Errors:   none; gradients that are not finite change no weight and no moment and are reported. On a GPU the router's biases may have
//           changed and later steps may be queued when that is read: whoever reads it goes on from a checkpoint, or not at all.
// Source:   training.md 2-4; params.h says the group of each parameter. Weights in FP64 take the double references.
#pragma once

#include <vector>

#include "k3/model/train/train_weights.h"
#include "k3/ops/optim/adamw/adamw.h"
#include "k3/ops/optim/muon/muon.h"
#include "k3/ops/tape.h"
#include "k3/train/run/steps_ahead.h"
#include "k3/train/run/train_config.h"

namespace k3::train {

struct StepReport {
  double gradient_norm = 0;
  const TrainTensor* not_finite = nullptr;  // first parameter with such a gradient
  double load_violation = 0;                // mean over layers of largest load / mean load - 1
  double load_violation_worst = 0;
  double largest_logit = 0;                 // of attention
};

class Optimizer {
 public:
  static Result<Optimizer> create(TrainWeights& weights, const Recipe& recipe);

  // Sums that a step's forwards add to (histograms, loads, largest logits); call once.
  void watch(ops::Tape& tape);
  // `rate` is the schedule's factor; `step` counts from 1. Zeroes the gradients and the sums. On a GPU nothing waits: up to kStepsAhead
  // steps may be queued whose report was not read.
  Status queue(const ops::Ctx& ctx, const Tensor& grads, double rate, int64_t step);
  Result<StepReport> report(const ops::Ctx& ctx);  // of the oldest of them; waits for that one
  // Both.
  Result<StepReport> step(const ops::Ctx& ctx, const Tensor& grads, double rate, int64_t step);

  const Tensor& first() const { return first_; }
  const Tensor& second() const { return second_; }

 private:
  // A stretch of the arena that one call of an op takes.
  struct Matrix {
    int64_t at;
    ops::NsUnits units;
    double lr, decay;
  };
  struct Vector {
    int64_t at, count;
    double lr, decay;
  };
  struct Router {
    Tensor bias;
    Storage histogram, load;
  };
  struct Attention {
    ops::Weight q, kv_b;
    Storage largest;  // [heads] logits: FP64, on a GPU FP32
  };

  Optimizer(TrainWeights& weights, const Recipe& recipe) : weights_(&weights), recipe_(recipe) {}
  void add_tensor(size_t index);
  Status add_layers();
  template <class T>
  void apply(const ops::Ctx& ctx, const Tensor& grads, double rate, int64_t step);
  // Copies of the step's sums to the host: GradNorm, then largest logits by layer, then loads by layer.
  struct Fetched {
    Storage sums;  // pinned, on a GPU
    EventHandle copied;
  };
  Status fetch(const ops::Ctx& ctx, Fetched& to) const;
  Status clear_sums(const ops::Ctx& ctx, const Tensor& grads);
  template <class T>
  void clip_attention(const ops::Ctx& ctx);
  void balance(const ops::Ctx& ctx);
  template <class T>
  StepReport read(const std::byte* sums) const;
  StepReport read(const Fetched& from) const;
  bool on_gpu() const { return weights_->device.is_cuda(); }
  DType largest_dtype() const { return on_gpu() ? DType::f32 : DType::f64; }
  uint16_t* copy_of(int64_t at) const { return on_gpu() ? weights_->computed().as<uint16_t>() + at : nullptr; }
  Result<Storage> sums(int64_t bytes) const { return Storage::allocate_on(weights_->device, bytes); }

  TrainWeights* weights_;
  Recipe recipe_;
  Storage norm_;     // GradNorm, where the weights are
  Fetched fetched_[kStepsAhead];
  int64_t queued_ = 0, reported_ = 0;  // steps
  Storage state_;
  Tensor first_, second_;
  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  std::vector<Router> routers_;
  std::vector<Attention> attentions_;
};

}  // namespace k3::train
