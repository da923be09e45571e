#include "k3/model/run/paged_runner.h"

#include <algorithm>

#include "k3/model/model.h"

namespace k3 {

std::vector<PagedLayout::Layer> place_layers(const Config& config, std::span<const int64_t> group_layers,
                                             int64_t latent_layer_bytes, int64_t kda_layer_stride) {
  std::vector<PagedLayout::Layer> layers;
  int64_t mla = 0, in_group = 0;
  int32_t group = 0;
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if (!config.is_kda(l)) {
      layers.push_back({-1, mla++ * latent_layer_bytes});
      continue;
    }
    while (in_group == group_layers[static_cast<size_t>(group)]) {
      ++group;
      in_group = 0;
    }
    layers.push_back({group, in_group++ * kda_layer_stride});
  }
  return layers;
}

Result<PagedRunner> PagedRunner::create(const Model& model, ThreadPool& pool, const ComputeMode& mode,
                                        const PagedLayout& layout, const StepLimits& limits) {
  K3_CHECK(static_cast<int64_t>(layout.layers.size()) == model.config().num_hidden_layers, "{} layers are placed",
           layout.layers.size());
  K3_TRY_ASSIGN(Stepper stepper, Stepper::create(model, pool, mode, limits));
  return PagedRunner(std::move(stepper), layout);
}

Status PagedRunner::settle_scratch() {
  if (stepper_.model().plan()) return {};  // what it promised has been there since the start
  Workspace& workspace = *stepper_.ctx().workspace;
  return workspace.reserve(workspace.peak_bytes());
}

void PagedRunner::make_views(std::span<const PagedInput> inputs) {
  const Config& config = stepper_.model().config();
  int32_t groups = 0;
  for (const PagedLayout::Layer& layer : layout_.layers) groups = std::max(groups, layer.group + 1);
  slots_.assign(static_cast<size_t>(groups), {});
  exports_.assign(static_cast<size_t>(groups), {});
  for (size_t g = 0; g < slots_.size(); ++g) {
    for (size_t s = 0; s < inputs.size(); ++s) {
      slots_[g].push_back(inputs[s].state_pages[g]);
      for (const PagedExport& e : inputs[s].exports) {
        exports_[g].push_back({static_cast<int64_t>(s), e.tokens, e.pages[g]});
      }
    }
  }
  caches_.resize(layout_.layers.size());
  pages_.resize(layout_.layers.size());
  const int64_t width = config.kv_lora_rank + config.qk_rope_head_dim;
  for (size_t l = 0; l < layout_.layers.size(); ++l) {
    const PagedLayout::Layer& layer = layout_.layers[l];
    std::byte* base = layout_.pool + layer.offset;
    if (layer.group >= 0) {
      const auto g = static_cast<size_t>(layer.group);
      caches_[l].state = {base,
                          layout_.state,
                          layout_.page_bytes / dtype_bytes(layout_.state),
                          base + layout_.conv_offset,
                          layout_.conv,
                          layout_.page_bytes / dtype_bytes(layout_.conv),
                          slots_[g].data()};
      caches_[l].exports = exports_[g];
      continue;
    }
    pages_[l].clear();
    for (const PagedInput& input : inputs) {
      pages_[l].push_back({base, layout_.latent, width, layout_.page_tokens, layout_.page_bytes / dtype_bytes(layout_.latent),
                           width, input.block_table.data()});
    }
    caches_[l].pages = pages_[l];
  }
}

Result<Tensor> PagedRunner::step(std::span<const PagedInput> inputs) {
  flat_.clear();
  for (const PagedInput& input : inputs) {
    K3_TRY(stepper_.model().check_ids(input.tokens));
    flat_.add(input.tokens, input.history, input.logits, input.choice);
  }
  K3_TRY(stepper_.check_size(flat_));
  make_views(inputs);
  return stepper_.run(flat_.batch(caches_));
}

}  // namespace k3
