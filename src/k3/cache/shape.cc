#include "k3/cache/shape.h"

#include <algorithm>

namespace k3::cache {

namespace {

constexpr int64_t kAlign = 64;  // of pages and of the states in them
constexpr int64_t kMostLayers = 1 << 16, kMostElements = int64_t{1} << 36;
// Without latents a page slot only carries the keys of its blocks; wide slots keep the pages spent on that few.
constexpr int64_t kTokensWithoutLatents = 4096;

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

Status check_counts(const LayerCounts& counts) {
  const auto inside = [](int64_t value, int64_t least, int64_t most) { return value >= least && value <= most; };
  if (!inside(counts.mla_layers, 0, kMostLayers) || !inside(counts.kda_layers, 0, kMostLayers) ||
      counts.mla_layers + counts.kda_layers == 0) {
    return fail(Code::invalid_argument, "cache shape: {} MLA and {} KDA layers", counts.mla_layers, counts.kda_layers);
  }
  if (counts.mla_layers > 0 && !inside(counts.latent_width, 1, kMostElements >> 16)) {
    return fail(Code::invalid_argument, "cache shape: latents of {} values", counts.latent_width);
  }
  if (counts.kda_layers > 0 && (!inside(counts.state_elements, 1, kMostElements) || !inside(counts.conv_elements, 0, kMostElements))) {
    return fail(Code::invalid_argument, "cache shape: a state of {} and {} values", counts.state_elements, counts.conv_elements);
  }
  return {};
}

Status check_dtypes(const CacheDtypes& dtypes) {
  const auto state_dtype = [](DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; };
  if (!state_dtype(dtypes.state) || !state_dtype(dtypes.conv)) {
    return fail(Code::invalid_argument, "cache shape: states are F32 or BF16, not {} and {}", dtype_name(dtypes.state),
                dtype_name(dtypes.conv));
  }
  if (!state_dtype(dtypes.latent) && dtypes.latent != DType::f8_e4m3) {
    return fail(Code::invalid_argument, "cache shape: latents are F32, BF16 or F8_E4M3, not {}", dtype_name(dtypes.latent));
  }
  return {};
}

}  // namespace

int64_t CacheShape::latent_layer_bytes() const { return page_tokens * latent_row_bytes(); }

int64_t CacheShape::latent_row_bytes() const {
  return counts.mla_layers == 0 ? 0 : counts.latent_width * dtype_bytes(dtypes.latent);
}

Result<CacheShape> make_shape(const LayerCounts& counts, const CacheDtypes& dtypes, int64_t block_tokens) {
  if (block_tokens <= 0 || block_tokens % 16 != 0 || block_tokens > 1 << 20) {
    return fail(Code::invalid_argument, "cache shape: blocks of {} tokens; a positive multiple of 16 is needed", block_tokens);
  }
  K3_TRY(check_counts(counts));
  K3_TRY(check_dtypes(dtypes));
  CacheShape shape;
  shape.counts = counts;
  shape.dtypes = dtypes;
  shape.block_tokens = block_tokens;
  if (counts.kda_layers > 0) {
    shape.conv_offset = round_up(counts.state_elements * dtype_bytes(dtypes.state), kAlign);
    shape.layer_stride = round_up(shape.conv_offset + counts.conv_elements * dtype_bytes(dtypes.conv), kAlign);
    const int64_t most = std::max<int64_t>(1, counts.mla_layers);
    const int64_t groups = (counts.kda_layers + most - 1) / most;
    for (int64_t g = 0; g < groups; ++g) {
      shape.group_layers.push_back(counts.kda_layers / groups + (g < counts.kda_layers % groups ? 1 : 0));
    }
  }
  if (counts.mla_layers > 0) {
    const int64_t row_bytes = shape.latent_row_bytes();
    const int64_t needed = (shape.layer_stride + row_bytes - 1) / row_bytes;
    shape.page_tokens = round_up(std::max<int64_t>(needed, 1), block_tokens);
  } else {
    shape.page_tokens = round_up(kTokensWithoutLatents, block_tokens);
  }
  // A KDA group has at most as many layers as there are MLA layers, and each takes no more than an MLA layer's latents.
  const int64_t states_bytes = shape.groups() == 0 ? 0 : shape.group_layers.front() * shape.layer_stride;
  shape.page_bytes = round_up(std::max(counts.mla_layers * shape.latent_layer_bytes(), states_bytes), kAlign);
  return shape;
}

}  // namespace k3::cache
