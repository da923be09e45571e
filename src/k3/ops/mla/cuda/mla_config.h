// Internal to ops/mla. What runs for a shape on a device: functions of numbers alone, tested without a GPU.
#pragma once

#include <algorithm>

#include "k3/ops/mla/cuda/mla_cuda.h"
#include "k3/ops/mla/cuda/mla_split.h"

namespace k3::ops::cuda {

inline constexpr int kMlaMaxBlocks = 256;

inline MlaDecodeConfig mla_decode_config(int64_t heads, int64_t max_query_tokens, const DeviceInfo& device) {
  MlaDecodeConfig c;
  const int64_t rows = heads * max_query_tokens;
  c.hopper = device.capability >= 90 && device.capability < 100 && device.shared_bytes_per_block >= 232448;
  if (!c.hopper) return c;
  // Cycles of a tile of 64 tokens by the bandwidth of shared memory, which is what limits from 48 rows on.
  struct Shape {
    int row_tile, pair;
    bool halves;
    int cycles;  // times multiprocessors
  };
  constexpr Shape kShapes[] = {{16, 1, false, 1950}, {32, 1, false, 2250}, {48, 1, false, 2530},
                               {64, 1, false, 2850}, {96, 1, true, 4300},  {64, 2, false, 5840}};
  int64_t best = -1;
  for (const Shape& s : kShapes) {
    const int64_t tiles = (rows + s.row_tile * s.pair - 1) / (s.row_tile * s.pair);
    // A second walk over the tiles of a request costs no less than loading them again.
    const int64_t cost = tiles * s.cycles + (tiles - 1) * 1000;
    if (best >= 0 && cost >= best) continue;
    best = cost;
    c.row_tile = s.row_tile;
    c.pair = s.pair;
    c.halves = s.halves;
    c.row_tiles = static_cast<int>(tiles);
  }
  const int blocks = c.halves ? 2 : c.pair;
  c.workers = std::min<int>(std::max(device.sm_count, blocks), kMlaMaxBlocks) / blocks;
  c.min_tiles = c.row_tile * c.pair >= 64 ? 2 : 1;
  return c;
}

// One sequence of few rows; `tokens` of the step.
inline MlaFusedConfig mla_fused_config(int64_t heads, int64_t tokens, int64_t batch, const DeviceInfo& device) {
  MlaFusedConfig c;
  const int64_t rows = heads * tokens;
  const bool hopper = device.capability >= 90 && device.capability < 100 && device.shared_bytes_per_block >= 232448;
  if (!hopper || batch != 1 || rows > 32 || tokens > 8 || tokens < 1) return c;
  c.blocks = std::min(device.sm_count, kMlaMaxBlocks);
  c.units = static_cast<int>((8 * heads + c.blocks - 1) / c.blocks);
  c.row_tile = rows <= 16 && c.units <= mla_fused_units(16) ? 16 : 32;
  c.usable = c.units <= mla_fused_units(c.row_tile);
  return c;
}

// Heads whose expanded keys and values fit into half of L2 are computed side by side.
inline int mla_prefill_head_group(int64_t heads, int64_t keys, const DeviceInfo& device) {
  const int64_t bytes = keys * 256 * 2;
  return static_cast<int>(std::clamp<int64_t>(device.l2_bytes / 2 / std::max<int64_t>(bytes, 1), 1, heads));
}

}  // namespace k3::ops::cuda
