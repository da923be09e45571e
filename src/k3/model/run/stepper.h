// Purpose:  computes steps of one model: owns scratch and logits, not the caches. Runner and PagedRunner feed it.
// Shapes:   logits rows [vocab] f32.
// Units:    tokens.
// Memory:   workspace and logits; with a memory plan both are taken at create.
// Threads:  one thread; steps of a model that reads from disk take turns.
// Errors:   create: unsupported instruction set, exhausted. run: exhausted when a step is larger than the memory plan allows
//           (nothing is computed); errors of reading weights (the step is half done then, and so are its caches).
// Source:   model.md 3.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "k3/model/forward.h"
#include "k3/model/run/device_step.h"
#include "k3/model/stream/memory_plan.h"
#include "k3/ops/ctx.h"
#include "k3/ops/cuda/dispatch.h"

namespace k3 {

class Model;

// Most of one step on a GPU, where arrays for it are made beforehand.
struct StepLimits {
  int64_t tokens = 512, sequences = 1, ctx_tokens = 8192, page_tokens = 64, exports = 0, slot_groups = 1;
};

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
  std::vector<RowChoice> choices;  // of rows

  void clear();
  void add(std::span<const int32_t> ids, int64_t history_tokens, WantLogits logits, const RowChoice& choice = {});
  Batch batch(std::span<const LayerCache> caches) const { return {tokens, offsets, history, caches, rows, choices}; }
};

class Stepper {
 public:
  static Result<Stepper> create(const Model& model, ThreadPool& pool, const ComputeMode& mode, const StepLimits& limits = {});

  // Against the memory plan or the limits of a GPU's arrays; call before caches are touched.
  Status check_size(const FlatStep& step) const;
  // Logits of batch.logit_rows, in host memory, valid until the next call. Where can_choose(), rows with a choice hold nothing of use:
  // chosen() has their tokens.
  Result<Tensor> run(const Batch& batch);
  // Batch::choices are heeded: on a GPU that is not deterministic (a choice must not depend on whether someone looks at the logits).
  bool can_choose() const;
  // Of the rows of the last run(); empty when it had no choices, kNotChosen for rows that came as logits.
  std::span<const ops::cuda::ChosenRow> chosen() const { return chosen_; }

  // Captured steps name the addresses of caches: call when those move.
  void forget_graphs() {
    if (gpu_ != nullptr) gpu_->graphs.clear();
  }

  int64_t most_tokens() const;  // of one step: the plan's chunk; a very large number without a plan
  int64_t most_rows() const;    // of logits in one step; likewise
  const Model& model() const { return *model_; }
  ops::Ctx& ctx() { return ctx_; }

  // On a GPU: seconds from the copy of a step's arrays to its last kernel, without the fetch of logits; of the last run() since
  // time_steps(). Without it steps carry no events.
  Status time_steps();
  Result<double> last_seconds() const;
  // A piece of a step: median seconds of `part` over the arrays and caches of `batch`, replayed from a graph. It runs `repeats` + 2
  // times, writing what it writes; with 0 repeats once, and answers 0.
  using Part = std::function<Status(const ops::Ctx& ctx, const Batch& batch)>;
  Result<double> time_part(const Batch& batch, const Part& part, int64_t repeats);

 private:
  // What a step on a GPU needs besides.
  struct Gpu {
    StepLimits limits;
    StreamHandle stream;
    ops::cuda::OpStateHandle ops;
    DeviceStepBuffers buffers;
    std::vector<LayerCache> token_caches;  // of one sequence (stepper_deterministic.cc)
    Storage logits, host_logits;  // as many rows as a step ever had; the host's are pinned
    Storage choices, host_choices;  // likewise: SampleRow, then ids, then flags (stepper_choices.cc)
    // Steps of one token a sequence, by number of sequences: captured when they come a second time.
    std::map<int64_t, GraphHandle> graphs;
    EventHandle begun, computed;  // after time_steps()
  };

  explicit Stepper(const Model& model);
  static Result<std::unique_ptr<Gpu>> make_gpu(const Model& model, const StepLimits& limits);
  Result<Tensor> run_on_gpu(const Batch& batch);
  // stepper_deterministic.cc: every token as a step of its own.
  Result<Tensor> run_each_token_on_gpu(const Batch& batch);
  Status compute_token_on_gpu(const Batch& batch, int64_t sequence, int64_t token);
  Status copy_states_on_gpu(const Batch& batch, int64_t sequence, int64_t tokens_done);
  Status reserve_logits_on_gpu(int64_t rows);
  // stepper_choices.cc: tokens chosen where the logits are.
  Status stage_choices_on_gpu(const Batch& batch);
  Status choose_on_gpu(const Batch& batch, const Tensor& logits);
  Status fetch_rows_on_gpu(const Batch& batch, const Tensor& host);
  void note_chosen(const Batch& batch);
  bool in_parts(int64_t tokens) const;
  Status compute_on_gpu(const Batch& batch, const Tensor& logits);

  const Model* model_;
  std::unique_ptr<Workspace> workspace_;
  std::unique_ptr<Gpu> gpu_;
  ops::Ctx ctx_;
  std::vector<float> logits_;
  std::vector<ops::cuda::ChosenRow> chosen_;
};

}  // namespace k3
