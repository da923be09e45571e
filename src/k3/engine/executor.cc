#include "k3/engine/executor.h"

#include <chrono>

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

Result<std::unique_ptr<ModelExecutor>> ModelExecutor::create(const Model& model, ThreadPool& pool, const ComputeMode& mode,
                                                             cache::HybridCache& cache) {
  const cache::CacheShape& shape = cache.shape();
  PagedLayout layout;
  layout.pool = cache.pool();
  layout.page_bytes = shape.page_bytes;
  layout.page_tokens = shape.page_tokens;
  layout.state = shape.dtypes.state;
  layout.conv = shape.dtypes.conv;
  layout.latent = shape.dtypes.latent;
  layout.conv_offset = shape.conv_offset;
  layout.layers = place_layers(model.config(), shape.group_layers, shape.latent_layer_bytes(), shape.layer_stride);
  K3_TRY_ASSIGN(PagedRunner runner, PagedRunner::create(model, pool, mode, layout));
  return std::unique_ptr<ModelExecutor>(new ModelExecutor(std::move(runner)));
}

Result<Tensor> ModelExecutor::step(std::span<const StepItem> items) {
  inputs_.clear();
  exports_.resize(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const StepItem& item = items[i];
    exports_[i].clear();
    for (const cache::CheckpointWrite& write : item.checkpoints) {
      exports_[i].push_back({write.position - item.history, write.pages});
    }
    inputs_.push_back({item.tokens, item.history, item.block_table, item.state_pages, exports_[i], item.logits});
  }
  return runner_.step(inputs_);
}

double ModelExecutor::now_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace k3
