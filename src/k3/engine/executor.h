// Purpose:  what computes the steps that the engine plans: the model, or a clock that pretends to (planner).
// Shapes:   logits rows [vocab] f32.
// Units:    tokens, seconds.
// Memory:   views of the caller; logits are valid until the next step.
// Threads:  one thread.
// Errors:   step: whatever the model reports; the pages of all its items are half written then. rehearse: exhausted with the
//           arithmetic when the GPU has no room for scratch.
// Source:   architecture: "One model definition", point 8.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "k3/cache/hybrid_cache.h"
#include "k3/engine/request.h"
#include "k3/model/run/paged_runner.h"

namespace k3 {

struct StepItem {
  std::span<const int32_t> tokens;  // empty in a simulation
  int64_t token_count = 0;
  int64_t history = 0;
  bool decode = false;  // the tokens that the last step chose
  std::span<const int32_t> block_table, state_pages;
  std::span<const cache::CheckpointWrite> checkpoints;
  WantLogits logits = WantLogits::none;
  RowChoice choice = {};  // of its last row, where can_choose()
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Rows of logits, in the order of the items that want some.
  virtual Result<Tensor> step(std::span<const StepItem> items) = 0;
  virtual double now_seconds() const = 0;  // monotonic
  virtual int64_t most_tokens() const = 0;      // of a step
  virtual int64_t most_rows() const = 0;        // of logits in a step
  // Tokens are chosen where the logits are computed, and those do not come; chosen(): by the row of the last step, kNotChosen where
  // they did, empty where all did.
  virtual bool can_choose() const { return false; }
  virtual std::span<const ops::cuda::ChosenRow> chosen() const { return {}; }

  // Simulations. The step before again, at most `most` times, each item one token further every time; how often it was done.
  virtual int64_t repeat(std::span<const StepItem>, int64_t /*most*/) { return 0; }
  // Tokens that a modelled request's next decode step brings (speculation), when it has generated so many and is so long.
  virtual int64_t decode_tokens(RequestId, int64_t /*generated*/, int64_t /*context*/) { return 1; }
};

// The most that the engine will ask of a step.
struct ExecutorLimits {
  int64_t step_tokens = 512, sequences = 1, ctx_tokens = 8192;
};

// The model on the pages of a cache.
class ModelExecutor final : public Executor {
 public:
  // limits: of a GPU, whose arrays are made now; the CPU takes any step.
  static Result<std::unique_ptr<ModelExecutor>> create(const Model& model, ThreadPool& pool, const ComputeMode& mode,
                                                       const cache::CacheShape& shape, const ExecutorLimits& limits = {});
  // On a GPU: computes the largest steps on pages of its own, so that scratch is there before the pool takes the rest.
  Status rehearse();
  // The cache, of the shape given above, that steps write to; before the first step, outlives the last one.
  void use(cache::HybridCache& cache);
  void lose_device_at(int64_t step) { lose_at_ = step; }        // tests: EngineOptions
  Stream stream() { return runner_.stream(); }                    // of the steps on a GPU
  int64_t scratch_bytes() { return runner_.scratch_bytes(); }

  Result<Tensor> step(std::span<const StepItem> items) override;
  double now_seconds() const override;
  int64_t most_tokens() const override { return runner_.most_tokens(); }
  int64_t most_rows() const override { return runner_.most_rows(); }
  bool can_choose() const override { return runner_.can_choose(); }
  std::span<const ops::cuda::ChosenRow> chosen() const override { return runner_.chosen(); }

 private:
  ModelExecutor(PagedRunner runner, const Model& model, const cache::CacheShape& shape, const ExecutorLimits& limits, bool deterministic)
      : runner_(std::move(runner)), model_(model), shape_(shape), limits_(limits), deterministic_(deterministic) {}

  PagedRunner runner_;
  const Model& model_;
  cache::CacheShape shape_;
  ExecutorLimits limits_;
  bool deterministic_;  // on a GPU every token is a step of its own then
  cache::HybridCache* cache_ = nullptr;
  int64_t steps_ = 0, lose_at_ = 0;
  std::vector<PagedInput> inputs_;
  std::vector<std::vector<PagedExport>> exports_;
};

// A prompt's part in a step on a GPU expands the keys of all tokens before it, which a prompt that shares its step does again for
// fewer tokens; so prompts share a step while the longest context and so many further keys are not exceeded.
inline constexpr int64_t kFurtherKeys = 8192;
// Token budget of a step on a GPU, as `k3 serve` takes it: experts are read from memory once a step, whatever its tokens.
inline constexpr int64_t kGpuStepTokens = 2048;

// The counts of a model that decide its page size.
cache::LayerCounts layer_counts(const Config& config);

}  // namespace k3
