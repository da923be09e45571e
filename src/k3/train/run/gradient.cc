#include "k3/train/run/gradient.h"

#include <algorithm>

#include "k3/model/forward.h"
#include "k3/ops/attn_res/attn_res_train.h"
#include "k3/ops/gemm/linear_train.h"
#include "k3/ops/matmul/matmul.h"

namespace k3::train {

Gradient::Gradient(TrainWeights& weights, const Tensor& grads, ThreadPool& pool) : weights_(weights) {
  ctx_.pool = &pool;
  ctx_.workspace = &workspace_;
  ctx_.isa = ops::detect_isa();
  ctx_.training = true;
  ctx_.double_precision = weights.dtype == DType::f64;
  tape_.parameters(weights.arena.data(), weights.dtype, weights.elements, grads);
}

// The caller holds the scope of the workspace.
Tensor Gradient::forward(const MicroBatch& batch, Batch& step, std::vector<int64_t>& history) {
  history.assign(batch.offsets.size() - 1, 0);
  step.tokens = batch.tokens;
  step.offsets = batch.offsets;
  step.history = history;
  for (const Fold& fold : weights_.folds) ops::fold_query(ctx_, fold.norm, fold.projection, fold.query);
  const Tensor hidden = workspace_.tensor({step.token_count(), weights_.config.hidden_size}, ctx_.activation());
  const Status status = forward_hidden(ctx_, weights_.config, {.all = &weights_.set}, step, hidden);
  K3_CHECK(status.ok(), "a forward in memory failed: {}", status.error().message);
  return hidden;
}

ops::CrossEntropy Gradient::add(const MicroBatch& batch, double scale) {
  const Workspace::Scope scope(workspace_);
  Batch step;
  std::vector<int64_t> history;
  ctx_.tape = &tape_;
  tape_.valid = batch.valid;
  workspace_.retain(true);
  const Tensor hidden = forward(batch, step, history);
  workspace_.retain(false);
  const ops::CrossEntropy loss = ops::cross_entropy(ctx_, hidden, weights_.set.lm_head, batch.targets, scale);
  tape_.backward(ctx_);
  ctx_.tape = nullptr;
  return loss;
}

ops::CrossEntropy Gradient::loss(const MicroBatch& batch) {
  const Workspace::Scope scope(workspace_);
  Batch step;
  std::vector<int64_t> history;
  const Tensor hidden = forward(batch, step, history);
  return ops::cross_entropy(ctx_, hidden, weights_.set.lm_head, batch.targets, 1.0);
}

int32_t Gradient::likeliest(std::span<const int32_t> tokens) {
  const Workspace::Scope scope(workspace_);
  Batch step;
  std::vector<int64_t> history;
  const std::vector<int64_t> offsets = {0, static_cast<int64_t>(tokens.size())};
  const Tensor hidden = forward({tokens, {}, offsets}, step, history);
  const Tensor row = workspace_.tensor({1, weights_.config.vocab_size}, hidden.dtype);
  ops::matmul(ctx_, hidden.slice(hidden.dim(0) - 1, hidden.dim(0)), ops::Op::plain, ops::weight_matrix(weights_.set.lm_head),
              ops::Op::transposed, row);
  const auto best = [&](const auto* values) { return static_cast<int32_t>(std::max_element(values, values + row.size()) - values); };
  return row.dtype == DType::f64 ? best(row.f64()) : best(row.f32());
}

Tensor Gradient::logits(const MicroBatch& batch) {
  const Workspace::Scope scope(workspace_);
  Batch step;
  std::vector<int64_t> history;
  const Tensor hidden = forward(batch, step, history);
  const Tensor out = workspace_.tensor({hidden.dim(0), weights_.config.vocab_size}, hidden.dtype);
  ops::matmul(ctx_, hidden, ops::Op::plain, ops::weight_matrix(weights_.set.lm_head), ops::Op::transposed, out);
  return out;
}

}  // namespace k3::train
