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

enum class GemmRoute { rows, library };

// rows: the kernel of gemm_rows, which reads each weight once for up to 32 tokens; library: cuBLASLt.
constexpr GemmRoute gemm_route(int64_t tokens, int64_t rows, int64_t in, Scheme scheme, bool deterministic) {
  (void)rows, (void)in;
  if (deterministic || scheme != Scheme::bf16) return GemmRoute::rows;
  return tokens <= 16 ? GemmRoute::rows : GemmRoute::library;
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
  // Too few blocks to load from every multiprocessor evenly: more of them along I, while each warp keeps two steps.
  while (c.cluster < 8 && row_tiles * c.cluster < 4 * sm_count && steps >= 4 * c.cluster * c.k_warps) c.cluster *= 2;
  // Plenty: fewer sums across warps, more rows a block for each read of x.
  while (c.cluster == 1 && c.k_warps > 1 && row_tiles * (c.k_warps / 2) >= 64 * sm_count) c.k_warps /= 2;
  return c;
}

// Numbers of tokens for which cuBLASLt's algorithms are measured: powers of two from 16 on.
constexpr int64_t gemm_token_bucket(int64_t tokens) {
  int64_t bucket = 16;
  while (bucket < tokens) bucket *= 2;
  return bucket;
}

}  // namespace k3::ops::cuda
