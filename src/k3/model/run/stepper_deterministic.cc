// Steps of a deterministic model on a GPU: every token is a step of one token of one sequence, so that kernels, splits and orders of
// sums cannot depend on the phase, the chunk or the neighbours. What differs between two such steps is data: the token, the slot, the
// block table and the length (MLA divides its work by the length alone, as a sequence on its own has it). The first step after a
// start is launched, the others replay one captured graph. Prompts take as long as decoding them would.
#include <algorithm>
#include <mutex>

#include "k3/model/model.h"
#include "k3/model/run/stepper.h"
#include "k3/ops/moe/expert_store.h"

namespace k3 {

Result<Tensor> Stepper::run_each_token_on_gpu(const Batch& batch) {
  Gpu& gpu = *gpu_;
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  const int64_t vocab = model_->config().vocab_size;
  K3_TRY(set_current_device(model_->device()));
  K3_TRY(reserve_logits_on_gpu(std::max<int64_t>(rows, 1)));
  const Tensor host(gpu.host_logits.data(), DType::f32, {rows, vocab});
  ops::ExpertStore* const experts = model_->weights().experts.get();
  std::unique_lock<std::mutex> turn;
  if (experts != nullptr) turn = std::unique_lock(experts->step_mutex());
  size_t row = 0;  // the next that is wanted
  for (int64_t s = 0; s < batch.sequence_count(); ++s) {
    const int64_t begin = batch.offsets[static_cast<size_t>(s)], end = batch.offsets[static_cast<size_t>(s) + 1];
    for (int64_t t = begin; t < end; ++t) {
      if (experts != nullptr) K3_TRY(experts->begin_step(false, gpu.stream.get()));
      K3_TRY(compute_token_on_gpu(batch, s, t));
      if (experts != nullptr) K3_TRY(experts->end_step(gpu.stream.get()));
      K3_TRY(copy_states_on_gpu(batch, s, t + 1 - begin));
      if (row == batch.logit_rows.size() || batch.logit_rows[row] != t) continue;
      K3_TRY(copy_async(host.at(static_cast<int64_t>(row)).data, gpu.logits.data(), vocab * 4, gpu.stream.get()));
      ++row;
    }
  }
  K3_CHECK(row == batch.logit_rows.size(), "{} of {} rows of logits", row, batch.logit_rows.size());
  K3_TRY(synchronize(gpu.stream.get()));
  return host;
}

// Logits always, so that one graph serves all: they land in the first row on the device.
Status Stepper::compute_token_on_gpu(const Batch& batch, int64_t sequence, int64_t token) {
  Gpu& gpu = *gpu_;
  const auto s = static_cast<size_t>(sequence);
  const int64_t offsets[] = {0, 1}, history[] = {batch.history[s] + token - batch.offsets[s]}, logit_rows[] = {0};
  gpu.token_caches.assign(batch.caches.begin(), batch.caches.end());
  for (LayerCache& cache : gpu.token_caches) {
    if (cache.state.slots != nullptr) cache.state.slots += sequence;
    if (!cache.pages.empty()) cache.pages = cache.pages.subspan(s, 1);
    cache.exports = {};
  }
  Batch one{batch.tokens.subspan(static_cast<size_t>(token), 1), offsets, history, gpu.token_caches, logit_rows};
  K3_TRY(gpu.buffers.stage(one, gpu.stream.get()));  // waits for the token before the last
  one.caches = gpu.buffers.caches();
  ctx_.step = &gpu.buffers.step();
  K3_TRY(compute_on_gpu(one, Tensor(gpu.logits.data(), DType::f32, {1, model_->config().vocab_size})));
  return ops::cuda::take_error(gpu.ops.get());
}

// The checkpoints that a sequence wants after so many tokens of the step.
Status Stepper::copy_states_on_gpu(const Batch& batch, int64_t sequence, int64_t tokens_done) {
  const Config& c = model_->config();
  const int64_t states = c.kda_num_heads * c.kda_head_dim * c.kda_head_dim, tails = 3 * (c.short_conv_kernel_size - 1) * c.kda_width();
  for (const LayerCache& cache : batch.caches) {
    const ops::StateSlots& from = cache.state;
    for (const ops::StateExport& e : cache.exports) {
      if (e.sequence != sequence || e.tokens != tokens_done) continue;
      K3_TRY(copy_async(from.recurrent_at(e.slot), from.recurrent_of(sequence), states * dtype_bytes(from.recurrent_dtype), gpu_->stream.get()));
      K3_TRY(copy_async(from.conv_at(e.slot), from.conv_of(sequence), tails * dtype_bytes(from.conv_dtype), gpu_->stream.get()));
    }
  }
  return {};
}

}  // namespace k3
