// Purpose:  which kernel takes a dense product on the GPU, and how the row kernel splits it: pure functions of the shape.
// Shapes:   x [T, I], weights [O, I]; a row tile is 16 rows of a weight, a k-step 32 of its columns.
// Units:    none.
// Memory:   none.
// Threads:  pure functions.
// Errors:   none.
// Source:   kernels.md 9; the limits between the kernels are measured (bench/gpu).
#pragma once

#include <algorithm>
#include <cstdint>

#include "k3/ops/weight.h"

namespace k3::ops::cuda {

inline constexpr int kGemmRowTile = 16, kGemmKStep = 32, kGemmWarps = 8;
inline constexpr int kStreamColumns = 256, kStreamPitch = 2 * kStreamColumns + 64;  // of a stage; bytes between its rows: no bank twice
inline constexpr int kStreamMostStages = 16, kStreamMostTokens = 16;

// stream: weights through a ring in shared memory, BF16, few tokens; rows: any weights, reads them once for each 32 tokens;
// library: cuBLASLt.
enum class GemmRoute { stream, rows, library };

constexpr GemmRoute gemm_route(int64_t tokens, int64_t in, Scheme scheme, bool deterministic) {
  if (scheme != Scheme::bf16) return GemmRoute::rows;
  if (tokens <= kStreamMostTokens) return in % kGemmKStep == 0 ? GemmRoute::stream : GemmRoute::rows;
  return deterministic ? GemmRoute::rows : GemmRoute::library;
}

struct RowsConfig {
  int token_tiles = 1;  // 8 tokens each: 1, 2 or 4 a block
  int k_warps = 8;      // warps of a block that share one row tile: 1, 2, 4, 8
  int cluster = 1;      // blocks of a cluster that share its row tiles: 1, 2, 4, 8
  constexpr int tiles_per_block() const { return kGemmWarps / k_warps; }
  bool operator==(const RowsConfig&) const = default;
};

// In deterministic the split along I must not depend on the number of tokens, nor on what else is in the launch.
constexpr RowsConfig rows_config(int64_t tokens, int64_t row_tiles, int64_t in, int sm_count, bool deterministic) {
  RowsConfig c;
  c.token_tiles = tokens <= 8 ? 1 : tokens <= 16 ? 2 : 4;
  if (deterministic) return c;
  const int64_t steps = (in + kGemmKStep - 1) / kGemmKStep;
  // Fewer blocks than multiprocessors: more of them along I, while each warp keeps two steps. (Clusters start slowly: few of them.)
  while (c.cluster < 8 && row_tiles * c.cluster < sm_count && steps >= 4 * c.cluster * c.k_warps) c.cluster *= 2;
  // Plenty: fewer sums across warps, more rows a block for each read of x.
  while (c.cluster == 1 && c.k_warps > 1 && row_tiles * (c.k_warps / 2) >= 64 * sm_count) c.k_warps /= 2;
  return c;
}

// What a block of the stream kernel has in shared memory before its ring: barriers, sums of eight warps.
constexpr int stream_head_bytes(int row_tiles, int token_tiles) {
  const int sums = kGemmWarps * 8 * token_tiles * (kGemmRowTile * row_tiles + 4) * 4;
  return 16 * kStreamMostStages + (sums + 127) / 128 * 128;
}

struct StreamConfig {
  int row_tiles = 1;    // 1, 2 or 4: most rows of a row block, in tiles of 16
  int token_tiles = 1;  // 1 or 2, of 8 tokens
  int blocks = 1, block_rows = 1, stages = 2, shared_bytes = 0;
};
// ring_bytes 0: half of a multiprocessor's shared memory, so that the next launch can fill its ring beside this one.
constexpr StreamConfig stream_config(int64_t tokens, int64_t rows, int64_t in, int sm_count, int row_tiles = 0, int64_t ring_bytes = 0) {
  StreamConfig c;
  c.token_tiles = tokens <= 8 ? 1 : 2;
  c.blocks = static_cast<int>(std::min<int64_t>(rows, sm_count));
  const int64_t each = (rows + c.blocks - 1) / c.blocks;
  c.row_tiles = row_tiles > 0 ? row_tiles : each <= 16 ? 1 : each <= 32 || tokens <= 4 ? 2 : 4;
  const int64_t most = kGemmRowTile * c.row_tiles, row_blocks = (each + most - 1) / most;
  c.block_rows = static_cast<int>((each + row_blocks - 1) / row_blocks);
  const int64_t head = stream_head_bytes(c.row_tiles, c.token_tiles), stage = (c.block_rows + tokens) * kStreamPitch;
  const int64_t budget = ring_bytes > 0 ? ring_bytes : (each > 256 ? 224 << 10 : 112 << 10) - head;
  const int64_t needed = row_blocks * ((in + kStreamColumns - 1) / kStreamColumns);
  c.stages = static_cast<int>(std::max<int64_t>(1, std::min({budget / stage, needed, int64_t{kStreamMostStages}})));
  c.shared_bytes = static_cast<int>(head + c.stages * stage);
  return c;
}

// Numbers of tokens for which cuBLASLt's algorithms are measured: powers of two from 16 on.
constexpr int64_t gemm_token_bucket(int64_t tokens) {
  int64_t bucket = 16;
  while (bucket < tokens) bucket *= 2;
  return bucket;
}

}  // namespace k3::ops::cuda
