// Purpose:  which kernel serves a shape of moe_stream_cuda, and with how much shared memory.
// Shapes:   none.
// Units:    bytes.
// Memory:   none.
// Threads:  pure.
// Errors:   grid 0: shapes that these kernels do not serve.
// Source:   kernels.md 7; moe_stream_sm90.cu has the layout of shared memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/moe/cuda/moe_plan_cuda.h"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

inline constexpr int64_t kMoeInOrderTokens = 8, kMoeInOrderSlots = 128;
// Shared memory of the routing of as many tokens: candidates and choices of a warp each, then ids and weights of all slots.
inline constexpr int64_t kMoeRouteBytes = kMoeInOrderTokens * (96 * 8 + 16 * 4) + kMoeInOrderSlots * 8;

constexpr int64_t moe_chunks(MoeWeights kind, int64_t columns) {
  return (columns + moe_chunk_columns(kind) - 1) / moe_chunk_columns(kind);
}
constexpr bool moe_shape_fits(MoeWeights kind, int64_t width, int64_t hidden) {
  const int64_t unit = kind == MoeWeights::mxfp4 ? 32 : 8;
  return width >= 1 && hidden >= 1 && width % unit == 0 && hidden % unit == 0;
}

// Sums in order are dealt by columns: so many groups of four a block.
constexpr int moe_sum_fours(int64_t width, int grid) { return static_cast<int>((width / 4 + grid - 1) / grid); }
// Shared memory of the shared experts' rows of a block, and of their sums.
constexpr int64_t moe_shared_rows_bytes(int64_t tokens, int64_t width, int64_t columns, int grid) {
  return int64_t{4} * moe_sum_fours(width, grid) * (columns * 2 + tokens * 4);
}

inline MoeStreamConfig moe_stream_config(MoeWeights kind, int64_t tokens, int64_t topk, int64_t experts, int64_t width,
                                         int64_t hidden, const DeviceInfo& device) {
  MoeStreamConfig c;
  c.grid = 0;
  if (!moe_shape_fits(kind, width, hidden) || device.sm_count < 1 || device.capability != 90) return c;
  c.in_order = tokens <= kMoeInOrderTokens && tokens * topk <= kMoeInOrderSlots;
  c.tile = c.in_order || tokens * topk <= 5 * experts ? 8 : 16;  // at 5 rows an expert, 7 of 100 have more than 8
  c.warps = kind == MoeWeights::bf16 ? 8 : 16;
  c.stages = kind == MoeWeights::mxfp4 ? 2 : c.tile == 8 ? 4 : 3;
  c.per = kind == MoeWeights::mxfp4 && c.tile == 8 ? 2 : 1;
  c.max_tiles = c.in_order ? static_cast<int>(kMoeInOrderSlots)
                           : static_cast<int>(moe_max_tiles(tokens, topk, experts, c.tile) / device.sm_count + 2);
  const int64_t columns = std::max(moe_chunks(kind, width), moe_chunks(kind, hidden)) * moe_chunk_columns(kind);
  const int64_t b = columns * 2 * c.tile, rings = c.warps * c.stages * c.per * moe_chunk_bytes(kind);
  const int64_t joined = c.warps * 32 * 16 * (c.tile / 8), table = (c.max_tiles * 26 + 15) / 16 * 16 + (c.in_order ? kMoeRouteBytes : 0);
  c.b_bytes = static_cast<int>(b);
  c.route_at = static_cast<int>(b + rings + joined + table - kMoeRouteBytes);
  c.shared_bytes = static_cast<int>(b + rings + joined + table);
  // Barriers and what the table is made of: less than 1024 bytes, static.
  if (b + rings + joined + table + 1024 <= device.shared_bytes_per_block) c.grid = device.sm_count;
  return c;
}

}  // namespace k3::ops::cuda
