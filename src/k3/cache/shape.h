// Purpose:  sizes of the unified page pool of a model: one page byte size for MLA pages and KDA pages.
// Shapes:   an MLA page is [MLA layer][page_tokens][latent_width]; a KDA page of group g is, for each of its layers,
//           [recurrent state | conv state], each layer at a multiple of layer_stride.
// Units:    bytes, tokens, layers.
// Memory:   by value.
// Threads:  pure functions.
// Errors:   make_shape: invalid_argument for block_tokens that is not a positive multiple of 16 or counts that cannot be.
// Source:   serving.md 2, 2.1: page_tokens is the smallest multiple of block_tokens with page_tokens * latent bytes of a layer
//           >= state + conv bytes of a layer (each rounded up to 64); KDA layers form groups no larger than the MLA group
//           (balanced); the page is MLA layers * page_tokens * latent bytes, rounded up to 64. Without MLA layers every KDA
//           layer is a group, a page is its state, and an "MLA page" holds no latents, only the place of its blocks' keys.
//           GPU kernels need no more than this gives: pages of a multiple of 16 tokens (of 64 for their fastest loads), every
//           layer's part at a multiple of 64 bytes (mla_args.h, kda_decode_args.h).
#pragma once

#include <cstdint>
#include <vector>

#include "k3/base/result.h"
#include "k3/tensor/dtype.h"

namespace k3::cache {

struct CacheDtypes {
  DType state = DType::f32;   // f32 or bf16
  DType conv = DType::f32;    // f32 or bf16
  DType latent = DType::f32;  // f32, bf16 or f8_e4m3
};

struct LayerCounts {
  int64_t mla_layers = 0, kda_layers = 0;
  int64_t state_elements = 0;  // of one KDA layer
  int64_t conv_elements = 0;   // of one KDA layer
  int64_t latent_width = 0;    // of one token in one MLA layer
};

struct CacheShape {
  LayerCounts counts;
  CacheDtypes dtypes;
  int64_t block_tokens = 0;  // hash endpoint g
  int64_t page_tokens = 0;
  int64_t page_bytes = 0;
  std::vector<int64_t> group_layers;  // KDA layers of each group, in model order
  int64_t layer_stride = 0;           // bytes from KDA layer to KDA layer in a page
  int64_t conv_offset = 0;            // bytes from a layer's recurrent to its conv state

  int64_t groups() const { return static_cast<int64_t>(group_layers.size()); }
  int64_t blocks_per_page() const { return page_tokens / block_tokens; }
  int64_t pages_for(int64_t tokens) const { return (tokens + page_tokens - 1) / page_tokens; }
  int64_t latent_row_bytes() const;    // of one token in one MLA layer
  int64_t latent_layer_bytes() const;  // of one MLA layer in a page
};

Result<CacheShape> make_shape(const LayerCounts& counts, const CacheDtypes& dtypes, int64_t block_tokens);

}  // namespace k3::cache
