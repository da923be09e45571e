// Purpose:  what computes the steps that the engine plans: the model, or a clock that pretends to (planner).
// Shapes:   logits rows [vocab] f32.
// Units:    tokens, seconds.
// Memory:   views of the caller; logits are valid until the next step.
// Threads:  one thread.
// Errors:   step: whatever the model reports; the pages of all its items are half written then.
// Source:   architecture: "One model definition", point 8.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "k3/cache/hybrid_cache.h"
#include "k3/model/run/paged_runner.h"

namespace k3 {

struct StepItem {
  std::span<const int32_t> tokens;  // empty in a simulation
  int64_t token_count = 0;
  int64_t history = 0;
  std::span<const int32_t> block_table, state_pages;
  std::span<const cache::CheckpointWrite> checkpoints;
  WantLogits logits = WantLogits::none;
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Rows of logits, in the order of the items that want some.
  virtual Result<Tensor> step(std::span<const StepItem> items) = 0;
  virtual double now_seconds() const = 0;  // monotonic
  virtual int64_t most_tokens() const = 0;      // of a step
  virtual int64_t most_rows() const = 0;        // of logits in a step
};

// The model on the pages of `cache`.
class ModelExecutor final : public Executor {
 public:
  static Result<std::unique_ptr<ModelExecutor>> create(const Model& model, ThreadPool& pool, const ComputeMode& mode,
                                                       cache::HybridCache& cache);
  Result<Tensor> step(std::span<const StepItem> items) override;
  double now_seconds() const override;
  int64_t most_tokens() const override { return runner_.most_tokens(); }
  int64_t most_rows() const override { return runner_.most_rows(); }

 private:
  explicit ModelExecutor(PagedRunner runner) : runner_(std::move(runner)) {}
  PagedRunner runner_;
  std::vector<PagedInput> inputs_;
  std::vector<std::vector<PagedExport>> exports_;
};

// The counts of a model that decide its page size.
cache::LayerCounts layer_counts(const Config& config);

}  // namespace k3
