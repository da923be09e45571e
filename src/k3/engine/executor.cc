#include "k3/engine/executor.h"

#include <algorithm>
#include <chrono>

#include "k3/base/units.h"
#include "k3/model/model.h"

namespace k3 {

cache::LayerCounts layer_counts(const Config& config) {
  cache::LayerCounts counts;
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) ++(config.is_kda(l) ? counts.kda_layers : counts.mla_layers);
  if (counts.kda_layers > 0) {
    counts.state_elements = config.kda_num_heads * config.kda_head_dim * config.kda_head_dim;
    counts.conv_elements = 3 * (config.short_conv_kernel_size - 1) * config.kda_width();
  }
  if (counts.mla_layers > 0) counts.latent_width = config.kv_lora_rank + config.qk_rope_head_dim;
  return counts;
}

namespace {

StepLimits step_limits(const cache::CacheShape& shape, const ExecutorLimits& limits) {
  StepLimits out;
  out.tokens = limits.step_tokens;
  out.sequences = limits.sequences;
  out.ctx_tokens = limits.ctx_tokens;
  out.page_tokens = shape.page_tokens;
  out.exports = out.tokens / shape.block_tokens + limits.sequences;  // every block end that a step can pass
  out.slot_groups = std::max<int64_t>(1, shape.groups());
  return out;
}

}  // namespace

Result<std::unique_ptr<ModelExecutor>> ModelExecutor::create(const Model& model, ThreadPool& pool, const ComputeMode& mode,
                                                             const cache::CacheShape& shape, const ExecutorLimits& limits) {
  PagedLayout layout;
  layout.page_bytes = shape.page_bytes;
  layout.page_tokens = shape.page_tokens;
  layout.state = shape.dtypes.state;
  layout.conv = shape.dtypes.conv;
  layout.latent = shape.dtypes.latent;
  layout.conv_offset = shape.conv_offset;
  layout.layers = place_layers(model.config(), shape.group_layers, shape.latent_layer_bytes(), shape.layer_stride);
  K3_TRY_ASSIGN(PagedRunner runner, PagedRunner::create(model, pool, mode, layout, step_limits(shape, limits)));
  return std::unique_ptr<ModelExecutor>(new ModelExecutor(std::move(runner), model, shape, limits, mode.deterministic));
}

void ModelExecutor::use(cache::HybridCache& cache) {
  cache_ = &cache;
  runner_.set_pool(cache.pool());
}

// All sequences share their pages here: what is computed is thrown away.
Status ModelExecutor::rehearse() {
  const int64_t ctx = limits_.ctx_tokens, further = std::min(kFurtherKeys, ctx);
  K3_TRY_ASSIGN(const DeviceMemory memory, device_memory(model_.device()));
  const int64_t scratch = gpu_scratch_bytes(model_.config(), deterministic_ ? 1 : limits_.step_tokens, limits_.sequences,
                                            deterministic_ ? 1 : ctx + further, deterministic_ ? 1 : limits_.sequences);
  if (!model_.plan() && scratch > memory.free_bytes) {
    return fail(Code::exhausted, "steps of up to {} tokens and {} sequences need {} of scratch; {} of {} are free on {} (see --ctx, "
                "--max-running; --vram keeps experts in host memory)", limits_.step_tokens, limits_.sequences, format_bytes(scratch),
                format_bytes(memory.free_bytes), format_bytes(memory.total_bytes), device_name(model_.device()));
  }
  K3_TRY_ASSIGN(const Storage pages, Storage::allocate_on(model_.device(), (1 + shape_.groups()) * shape_.page_bytes));
  runner_.set_pool(pages.data());
  const std::vector<int32_t> table(static_cast<size_t>(shape_.pages_for(ctx)), 0);
  std::vector<int32_t> states, ids(static_cast<size_t>(std::min({limits_.step_tokens, ctx, runner_.most_tokens()})), 0);
  for (int32_t g = 0; g < static_cast<int32_t>(shape_.groups()); ++g) states.push_back(1 + g);
  const auto part = [&](int64_t tokens, int64_t end) {
    return PagedInput{std::span(ids).first(static_cast<size_t>(tokens)), end - tokens, table, states, {}, WantLogits::last};
  };
  const auto count = static_cast<int64_t>(ids.size());
  std::vector<PagedInput> inputs;
  if (deterministic_) {
    for (int64_t s = 0; s < std::min(limits_.sequences, count); ++s) inputs.push_back(part(1, ctx));
    K3_TRY(runner_.step(inputs));
    runner_.set_pool(nullptr);
    return runner_.settle_scratch();
  }
  inputs = {part(count, ctx)};
  K3_TRY(runner_.step(inputs));
  constexpr int64_t kShort = 16;
  if (count > 2 * kShort && limits_.sequences > 1) {
    inputs = {part(count - kShort, ctx), part(kShort, further)};
    K3_TRY(runner_.step(inputs));
  }
  // As many sequences and rows of logits as there can be. Two tokens each: steps of one are captured with the pool's addresses.
  inputs.clear();
  for (int64_t s = 0; s < std::min(limits_.sequences, count / 2); ++s) inputs.push_back(part(2, ctx));
  if (!inputs.empty()) K3_TRY(runner_.step(inputs));
  runner_.set_pool(nullptr);
  return runner_.settle_scratch();
}

Result<Tensor> ModelExecutor::step(std::span<const StepItem> items) {
  if (++steps_ == lose_at_) return fail(Code::device_lost, "step {}: lost for a test", steps_);
  const bool gpu = model_.device().is_cuda();
  inputs_.clear();
  exports_.resize(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const StepItem& item = items[i];
    exports_[i].clear();
    for (const cache::CheckpointWrite& write : item.checkpoints) {
      if (gpu && write.position == item.history + item.token_count) continue;
      exports_[i].push_back({write.position - item.history, write.pages});
    }
    inputs_.push_back({item.tokens, item.history, item.block_table, item.state_pages, exports_[i], item.logits, item.choice});
  }
  Result<Tensor> logits = runner_.step(inputs_);
  if (!gpu || !logits.ok()) return logits;
  // A checkpoint at an item's end is what its own pages hold now. So steps of single tokens export nothing and can be graphs.
  for (const StepItem& item : items) {
    for (const cache::CheckpointWrite& write : item.checkpoints) {
      if (write.position == item.history + item.token_count) cache_->copy_states(item.state_pages, write.pages);
    }
  }
  return logits;
}

double ModelExecutor::now_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace k3
