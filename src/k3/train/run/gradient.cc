#include "k3/train/run/gradient.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "k3/model/forward.h"
#include "k3/ops/attn_res/attn_res_train.h"
#include "k3/ops/gemm/linear_train.h"
#include "k3/ops/matmul/matmul.h"

namespace k3::train {

Gradient::Gradient(TrainWeights& weights, const Tensor& grads, ThreadPool& pool)
    : weights_(weights), staged_(weights.device), workspace_(weights.device), tape_(weights.device) {
  ctx_.pool = &pool;
  ctx_.workspace = &workspace_;
  ctx_.isa = ops::detect_isa();
  ctx_.training = true;
  ctx_.double_precision = weights.dtype == DType::f64;
  tape_.parameters(weights.arena.data(), weights.dtype, weights.elements, grads);
  if (on_gpu()) tape_.parameters(weights.compute.data(), DType::bf16, weights.elements, grads);
}

Status Gradient::open() {
  if (!on_gpu()) return {};
  K3_TRY(set_current_device(weights_.device));
  K3_TRY(ops::cuda::check_device());
  K3_TRY_ASSIGN(stream_, make_stream());
  state_ = ops::cuda::OpStateHandle(ops::cuda::new_op_state());
  K3_TRY_ASSIGN(sums_, Storage::allocate_on(weights_.device, 2 * int64_t{sizeof(double)}));
  K3_TRY_ASSIGN(fetched_, Storage::pinned((kStepsAhead + 1) * int64_t{sizeof(double)}));
  for (EventHandle& event : copied_) {
    K3_TRY_ASSIGN(event, make_event());
  }
  ctx_.device = weights_.device;
  ctx_.stream = stream_.get();
  ctx_.gpu = state_.get();
  ctx_.policy = ops::Policy::bf16;
  ctx_.step = &staged_.step;
  return {};
}

// Copies of the batch's numbers to the GPU; false: an error that fetch() tells.
bool Gradient::stage(const MicroBatch& batch, Sum sum) {
  staged_.step.nats = reinterpret_cast<double*>(sums_.data()) + sum;
  Status staged = staged_.stage(batch, weights_.config.vocab_size, stream_.get());
  if (staged.ok()) return true;
  if (error_.ok()) error_ = std::move(staged);
  return false;
}

// The sum goes to a pinned number and begins anew.
Status Gradient::fetch(Sum sum, int64_t to) {
  std::byte* const from = sums_.data() + sum * int64_t{sizeof(double)};
  K3_TRY(copy_async(fetched_.data() + to * int64_t{sizeof(double)}, from, sizeof(double), stream_.get()));
  return fill_async(from, 0, sizeof(double), stream_.get());
}

Result<double> Gradient::fetched(int64_t at) {
  K3_TRY(ops::cuda::take_error(state_.get()));
  K3_TRY(std::exchange(error_, Status()));
  return reinterpret_cast<const double*>(fetched_.data())[at];
}

Result<double> Gradient::measured() {
  K3_TRY(fetch(kMeasured, kStepsAhead));
  K3_TRY(synchronize(stream_.get()));
  return fetched(kStepsAhead);
}

Status Gradient::queued() { return std::exchange(error_, Status()); }

Status Gradient::close_step() {
  K3_CHECK(closed_ - taken_ < kStepsAhead, "{} steps closed, {} taken", closed_, taken_);
  const int64_t turn = closed_++ % kStepsAhead;
  step_nats_[turn] = std::exchange(nats_, 0.0);
  if (!on_gpu()) return {};
  K3_TRY(fetch(kTrained, turn));
  return record(copied_[turn], stream_.get());
}

Result<double> Gradient::take_nats() {
  if (closed_ == taken_) K3_TRY(close_step());
  const int64_t turn = taken_++ % kStepsAhead;
  if (!on_gpu()) return step_nats_[turn];
  K3_TRY(wait_for(copied_[turn]));
  return fetched(turn);
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
  if (on_gpu() && !stage(batch, kTrained)) return {};
  ctx_.tape = &tape_;
  tape_.valid = on_gpu() ? staged_.valid : batch.valid;
  workspace_.retain(true);
  const Tensor hidden = forward(batch, step, history);
  workspace_.retain(false);
  const ops::CrossEntropy loss = ops::cross_entropy(ctx_, hidden, weights_.set.lm_head, batch.targets, scale);
  tape_.backward(ctx_);
  ctx_.tape = nullptr;
  nats_ += loss.nats;
  return loss;
}

ops::CrossEntropy Gradient::loss(const MicroBatch& batch) {
  const Workspace::Scope scope(workspace_);
  Batch step;
  std::vector<int64_t> history;
  if (on_gpu() && !stage(batch, kMeasured)) return {};
  const Tensor hidden = forward(batch, step, history);
  ops::CrossEntropy loss = ops::cross_entropy(ctx_, hidden, weights_.set.lm_head, batch.targets, 1.0);
  if (!on_gpu()) return loss;
  Result<double> nats = measured();
  if (!nats.ok() && error_.ok()) error_ = nats.error();
  loss.nats = nats.ok() ? *nats : std::nan("");
  return loss;
}

int32_t Gradient::likeliest(std::span<const int32_t> tokens) {
  const Workspace::Scope scope(workspace_);
  Batch step;
  std::vector<int64_t> history;
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> padded(tokens.begin(), tokens.end());
  // What comes after a token does not change it; algorithms of products are chosen once for every length.
  if (on_gpu()) padded.resize(static_cast<size_t>((count + 63) / 64 * 64), tokens.back());
  const std::vector<int64_t> offsets = {0, static_cast<int64_t>(padded.size())};
  if (on_gpu() && !stage({padded, {}, offsets}, kMeasured)) return 0;
  const Tensor hidden = forward({padded, {}, offsets}, step, history);
  const Tensor row = logits_of(hidden.slice(count - 1, count));
  const auto best = [&](const auto* values) { return static_cast<int32_t>(std::max_element(values, values + row.size()) - values); };
  if (!on_gpu()) return row.dtype == DType::f64 ? best(row.f64()) : best(row.f32());
  std::vector<float> values(static_cast<size_t>(row.size()));
  Status fetched = copy_async(values.data(), row.data, row.size() * 4, stream_.get());
  if (fetched.ok()) fetched = synchronize(stream_.get());
  if (!fetched.ok() && error_.ok()) error_ = std::move(fetched);
  return best(values.data());
}

Tensor Gradient::logits_of(const Tensor& hidden) {
  const Tensor out = workspace_.tensor({hidden.dim(0), weights_.config.vocab_size}, on_gpu() ? DType::f32 : hidden.dtype);
  ops::matmul(ctx_, hidden, ops::Op::plain, ops::weight_matrix(weights_.set.lm_head), ops::Op::transposed, out);
  return out;
}

Tensor Gradient::logits(const MicroBatch& batch) {
  const Workspace::Scope scope(workspace_);
  Batch step;
  std::vector<int64_t> history;
  if (on_gpu() && !stage(batch, kMeasured)) return {};
  return logits_of(forward(batch, step, history));
}

}  // namespace k3::train
