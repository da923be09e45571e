#include "k3/model/run/stepper.h"

#include <limits>
#include <mutex>

#include "k3/model/model.h"

namespace k3 {

Result<Stepper> Stepper::create(const Model& model, ThreadPool& pool, const ComputeMode& mode) {
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
  constexpr int64_t kRowsWithoutPlan = 128;
  return model_->plan() ? model_->plan()->logits_bytes / (4 * model_->config().vocab_size) : kRowsWithoutPlan;
}

Status Stepper::check_size(int64_t tokens, int64_t rows) const {
  const std::optional<MemoryPlan>& plan = model_->plan();
  if (!plan) return {};
  const int64_t planned_rows = plan->logits_bytes / (4 * model_->config().vocab_size);
  if (tokens <= plan->chunk_tokens && rows <= planned_rows) return {};
  return fail(Code::exhausted, "a step of {} tokens and {} rows of logits; the memory plan has room for {} and {}", tokens,
              rows, plan->chunk_tokens, planned_rows);
}

Result<Tensor> Stepper::run(const Batch& batch) {
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  K3_TRY(check_size(batch.token_count(), rows));
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
