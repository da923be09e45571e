// Purpose:  computes steps of one model: owns scratch and logits, not the caches. Runner and PagedRunner feed it.
// Shapes:   logits rows [vocab] f32.
// Units:    tokens.
// Memory:   workspace and logits; with a memory plan both are taken at create.
// Threads:  one thread; steps of a model that reads from disk take turns.
// Errors:   create: unsupported instruction set, exhausted. run: exhausted when a step is larger than the memory plan allows
//           (nothing is computed); errors of reading weights (the step is half done then, and so are its caches).
// Source:   model.md 3.
#pragma once

#include <memory>
#include <vector>

#include "k3/model/forward.h"
#include "k3/model/stream/memory_plan.h"
#include "k3/ops/ctx.h"

namespace k3 {

class Model;

struct ComputeMode {
  ops::Policy policy = ops::Policy::bf16;
  ops::Isa isa = ops::detect_isa();
  bool deterministic = false;
  bool int8_activations = false;  // ops/ctx.h
};

enum class WantLogits { none, last, all };  // of an input's tokens

// The inputs of a step in the flat form of a Batch.
struct FlatStep {
  std::vector<int32_t> tokens;
  std::vector<int64_t> offsets{0}, history, rows;

  void clear();
  void add(std::span<const int32_t> ids, int64_t history_tokens, WantLogits logits);
  Batch batch(std::span<const LayerCache> caches) const { return {tokens, offsets, history, caches, rows}; }
};

class Stepper {
 public:
  static Result<Stepper> create(const Model& model, ThreadPool& pool, const ComputeMode& mode);

  // Against the memory plan; call before caches are touched.
  Status check_size(const FlatStep& step) const;
  // Logits of batch.logit_rows, valid until the next call.
  Result<Tensor> run(const Batch& batch);

  int64_t most_tokens() const;  // of one step: the plan's chunk; a very large number without a plan
  int64_t most_rows() const;    // of logits in one step; likewise
  const Model& model() const { return *model_; }
  ops::Ctx& ctx() { return ctx_; }

 private:
  explicit Stepper(const Model& model) : model_(&model), workspace_(std::make_unique<Workspace>()) {}

  const Model* model_;
  std::unique_ptr<Workspace> workspace_;
  ops::Ctx ctx_;
  std::vector<float> logits_;
};

}  // namespace k3
