#include "k3/model/run/stepper.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include "k3/model/model.h"

namespace k3 {

void FlatStep::clear() {
  tokens.clear();
  offsets.assign(1, 0);
  history.clear();
  rows.clear();
  choices.clear();
}

void FlatStep::add(std::span<const int32_t> ids, int64_t history_tokens, WantLogits logits, const RowChoice& choice) {
  const int64_t begin = offsets.back();
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  const auto end = static_cast<int64_t>(tokens.size());
  offsets.push_back(end);
  history.push_back(history_tokens);
  const int64_t first = logits == WantLogits::all ? begin : logits == WantLogits::last ? std::max(begin, end - 1) : end;
  for (int64_t t = first; t < end; ++t) rows.push_back(t);
  choices.resize(rows.size(), choice);
}

Stepper::Stepper(const Model& model) : model_(&model), workspace_(std::make_unique<Workspace>(model.device())) {}

Result<Stepper> Stepper::create(const Model& model, ThreadPool& pool, const ComputeMode& mode, const StepLimits& limits) {
  if (mode.isa > ops::detect_isa()) {
    return fail(Code::unsupported, "this processor has no {}; the best it has is {}", ops::isa_name(mode.isa),
                ops::isa_name(ops::detect_isa()));
  }
  Stepper stepper(model);
  stepper.ctx_.pool = &pool;
  stepper.ctx_.workspace = stepper.workspace_.get();
  stepper.ctx_.isa = mode.isa;
  stepper.ctx_.policy = mode.policy;
  stepper.ctx_.deterministic = mode.deterministic;
  stepper.ctx_.int8_activations = mode.int8_activations;
  stepper.ctx_.device = model.device();
  if (model.device().is_cuda()) {
    if (mode.policy == ops::Policy::exact) {
      return fail(Code::unsupported, "policy exact is FP32 throughout and runs on the CPU alone; use --policy bf16 or --device cpu");
    }
    if (mode.int8_activations) return fail(Code::unsupported, "--act int8 works with --device cpu alone");
    StepLimits arrays = limits;
    if (mode.deterministic) arrays.tokens = arrays.sequences = 1, arrays.exports = 0;  // stepper_deterministic.cc
    K3_TRY_ASSIGN(stepper.gpu_, make_gpu(model, arrays));
    if (mode.deterministic) {  // the arrays are those of a token, a step may have any number
      stepper.gpu_->limits.tokens = stepper.gpu_->limits.sequences = std::numeric_limits<int64_t>::max();
    }
    stepper.ctx_.stream = stepper.gpu_->stream.get();
    stepper.ctx_.gpu = stepper.gpu_->ops.get();
  }
  // What the plan promised is taken now: a step of a planned size cannot run out of memory.
  if (const std::optional<MemoryPlan>& plan = model.plan()) {
    stepper.logits_.reserve(static_cast<size_t>(plan->logits_bytes / 4));
    K3_TRY(stepper.workspace_->reserve(plan->scratch_bytes));
  }
  return stepper;
}

int64_t Stepper::most_tokens() const {
  return model_->plan() ? model_->plan()->chunk_tokens : std::numeric_limits<int64_t>::max();
}

int64_t Stepper::most_rows() const {
  const std::optional<MemoryPlan>& plan = model_->plan();
  return plan ? plan->logits_bytes / (4 * model_->config().vocab_size) : std::numeric_limits<int64_t>::max();
}

Status Stepper::check_size(const FlatStep& step) const {
  const auto tokens = static_cast<int64_t>(step.tokens.size()), rows = static_cast<int64_t>(step.rows.size());
  const auto sequences = static_cast<int64_t>(step.history.size());
  if (gpu_ != nullptr && (tokens > gpu_->limits.tokens || sequences > gpu_->limits.sequences)) {
    return fail(Code::exhausted, "a step of {} tokens of {} sequences; this runner takes at most {} of {}", tokens, sequences,
                gpu_->limits.tokens, gpu_->limits.sequences);
  }
  if (tokens <= most_tokens() && rows <= most_rows()) return {};
  return fail(Code::exhausted, "a step of {} tokens and {} rows of logits; the memory plan has room for {} and {}", tokens,
              rows, most_tokens(), most_rows());
}

Result<Tensor> Stepper::run(const Batch& batch) {
  chosen_.clear();
  if (gpu_ != nullptr) return ctx_.deterministic ? run_each_token_on_gpu(batch) : run_on_gpu(batch);
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  const int64_t vocab = model_->config().vocab_size;
  logits_.resize(static_cast<size_t>(rows * vocab));
  const Tensor logits(logits_.data(), DType::f32, {rows, vocab});
  if (batch.tokens.empty()) return logits;
  const WeightSource source = model_->source();
  std::unique_lock<std::mutex> turn;
  if (source.stream != nullptr) turn = std::unique_lock(source.stream->step_mutex());
  K3_TRY(forward(ctx_, model_->config(), source, batch, logits));
  return logits;
}

}  // namespace k3
