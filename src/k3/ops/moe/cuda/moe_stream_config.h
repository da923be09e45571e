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
#include <cstdlib>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/moe/cuda/moe_plan_cuda.h"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

inline constexpr int64_t kMoeInOrderTokens = 8, kMoeInOrderSlots = 128;

constexpr int64_t moe_chunks(MoeWeights kind, int64_t columns) { return (columns + moe_chunk_columns(kind) - 1) / moe_chunk_columns(kind); }
constexpr bool moe_shape_fits(MoeWeights kind, int64_t width, int64_t hidden) {
  const int64_t unit = kind == MoeWeights::mxfp4 ? 32 : 8;
  return width >= 1 && hidden >= 1 && width % unit == 0 && hidden % unit == 0;
}

inline MoeStreamConfig moe_stream_config(MoeWeights kind, int64_t tokens, int64_t topk, int64_t experts, int64_t width, int64_t hidden,
                                  const DeviceInfo& device) {
  MoeStreamConfig c;
  c.grid = 0;
  if (!moe_shape_fits(kind, width, hidden) || device.sm_count < 1 || device.capability != 90) return c;
  c.in_order = tokens <= kMoeInOrderTokens && tokens * topk <= kMoeInOrderSlots;
  c.tile = c.in_order || tokens * topk <= 3 * experts ? 8 : 16;  // beyond 3 rows an expert, too many have more than 8
  c.warps = kind == MoeWeights::bf16 ? 8 : c.tile == 8 ? 16 : 12;
  c.stages = c.tile == 8 ? 4 : 3;
  c.per = 1;
  if (const char* v = std::getenv("K3_MOE_VARIANT"); v != nullptr && kind == MoeWeights::mxfp4) {
    static constexpr int kVariants[4][2][3] = {{{16, 4, 1}, {12, 3, 1}}, {{16, 2, 2}, {8, 3, 2}}, {{8, 4, 2}, {16, 2, 1}}, {{12, 3, 2}, {8, 5, 1}}};
    const auto& mine = kVariants[std::atoi(v) & 3][c.tile / 8 - 1];
    c.warps = mine[0], c.stages = mine[1], c.per = mine[2];
  }
  c.max_tiles = c.in_order ? static_cast<int>(kMoeInOrderSlots)
                           : static_cast<int>(moe_max_tiles(tokens, topk, experts, c.tile) / device.sm_count + 2);
  const auto shared = [&](int64_t columns) {
    const int64_t b = moe_chunks(kind, columns) * moe_chunk_columns(kind) * 2 * c.tile, rings = c.warps * c.stages * c.per * moe_chunk_bytes(kind);
    const int64_t joined = c.warps * 32 * 16 * (c.tile / 8), bars = c.warps * c.stages * 8;
    const int64_t table = c.in_order ? kMoeInOrderSlots * (kMoeInOrderTokens + 2) : c.max_tiles * 10;
    return static_cast<int>(std::min<int64_t>(b + rings + joined + bars + table, 1 << 30));
  };
  c.shared_gate = shared(width);
  c.shared_down = shared(hidden);
  // 640 bytes of the table's making are static.
  if (std::max(c.shared_gate, c.shared_down) + 1024 <= device.shared_bytes_per_block) c.grid = device.sm_count;
  return c;
}

}  // namespace k3::ops::cuda
