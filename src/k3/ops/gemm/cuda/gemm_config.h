// Purpose:  which kernel takes a dense product on the GPU, and how the kernels of few tokens split it.
// Shapes:   x [T, I], weights [O, I]; a tile is up to 16 * row_tiles rows of the weights, a k-step 32 of their columns.
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
inline constexpr int kWideRows = 128, kWideColumns = 64, kWideTokens = 128;

// stream: BF16, few tokens, at the speed of memory, all parts in one launch; rows: any weights, read once for each 32
// tokens; library: cuBLASLt, one launch a part.
enum class GemmRoute { stream, rows, library };

// Measured on an H200 (bench/gpu): up to 16 tokens the stream kernel wins or is within a tenth of the library; beyond that
// its reads of x cost as much as those of the weights, yet for parts of few rows the library is slower still.
constexpr GemmRoute gemm_route(int64_t tokens, int64_t rows, int64_t in, Scheme scheme, bool deterministic) {
  if (scheme != Scheme::bf16) return GemmRoute::rows;
  const bool few = tokens <= 16 || (tokens <= 32 && rows <= 1536);
  if (!few && !deterministic) return GemmRoute::library;
  return in % kGemmKStep == 0 ? GemmRoute::stream : GemmRoute::rows;
}

struct RowsConfig {
  int64_t tiles = 1;    // the rows of all parts are cut into so many, of at most 16 * row_tiles rows
  int row_tiles = 1;    // 1, 2, or with more than 8 tokens 4; the row kernel has 1
  int token_tiles = 1;  // 8 tokens each: 1, 2 or 4 a block
  int k_warps = 8;      // warps of a block that share one tile: 1, 2, 4, 8
  int cluster = 1;      // blocks of a cluster that share its tiles: 1, 2, 4, 8
  constexpr int tiles_per_block() const { return kGemmWarps / k_warps; }
  bool operator==(const RowsConfig&) const = default;
};

// most_row_tiles: 1 for the row kernel. In deterministic the split along I depends on I alone: not on the tokens, nor on
// what else is in the launch. Measured on an H200 (bench/gpu): higher tiles read x less often, more tiles than
// multiprocessors start too slowly.
constexpr RowsConfig rows_config(int64_t tokens, int64_t rows, int64_t in, int sm_count, bool deterministic,
                                 int most_row_tiles) {
  RowsConfig c;
  const int64_t steps = (in + kGemmKStep - 1) / kGemmKStep;
  c.token_tiles = tokens <= 8 ? 1 : tokens <= 16 ? 2 : 4;
  while (c.k_warps > 1 && steps < c.k_warps) c.k_warps /= 2;
  const int64_t wave = int64_t{sm_count} * c.tiles_per_block();  // tiles of a block on every multiprocessor
  if (rows > wave * kGemmRowTile) c.row_tiles = 2;
  const bool long_rows = tokens > 8 && steps >= 16 * kGemmWarps;
  if (long_rows && rows > wave * kGemmRowTile * 2 && rows <= wave * kGemmRowTile * 4) c.row_tiles = 4;
  c.row_tiles = std::min(c.row_tiles, most_row_tiles);
  const int64_t height = int64_t{kGemmRowTile} * c.row_tiles, least = (rows + height - 1) / height;
  c.tiles = least;
  if (2 * least <= wave && !deterministic) {  // few rows: blocks of a cluster share K
    while (c.cluster < 4 && 2 * c.cluster * least <= wave && steps >= 4 * c.cluster * c.k_warps) c.cluster *= 2;
  } else if (least < 8 * wave) {  // the same number of bytes for every multiprocessor
    c.tiles = std::min(rows, (least + wave - 1) / wave * wave);
  }
  return c;
}

// Whether the wide kernel takes several products, `rows` in all, in one launch in place of the library's `parts`. Measured
// on an H200 (bench/gpu): its reads of x cost more than the library's, what it saves is launches and tails.
constexpr bool gemm_wide_wins(int64_t tokens, int64_t rows, int parts, int64_t in) {
  if (parts < 2 || tokens > kWideTokens || in % kWideColumns != 0) return false;
  return tokens <= 32 || rows <= (tokens <= 64 ? 2048 : 1024) * int64_t{parts};
}

// The wide kernel: tiles of up to 128 rows, a block (or a cluster along K) on every multiprocessor.
constexpr RowsConfig wide_config(int64_t rows, int64_t in, int sm_count) {
  RowsConfig c;
  c.row_tiles = kWideRows / kGemmRowTile;
  const int64_t least = (rows + kWideRows - 1) / kWideRows;
  while (c.cluster < 8 && least * c.cluster * 2 <= sm_count && in / kWideColumns >= 8 * c.cluster) c.cluster *= 2;
  c.tiles = std::min(rows, std::max(least, int64_t{sm_count / c.cluster}));
  return c;
}

// The kernel of one token: a ring of `groups` groups of `height` rows, `pitch` bytes apart, in every block. Few rows: a block has an
// equal part of them, as many as there is room for under way at once. Many: blocks take a group whenever they have finished one.
struct OneConfig {
  int64_t tiles = 0;  // blocks; 0: shapes that it does not serve
  int height = 0, groups = 0, pitch = 0;
  bool claims = false;
  constexpr int ring_bytes() const { return groups * height * pitch; }
  bool operator==(const OneConfig&) const = default;
};

// Few rows: so much shared memory that the kernels of a decode step fit beside their neighbours, of which the experts of one token take
// 129 KiB of 227. Many rows: three groups of a width of 2,304, though those do not fit beside the experts; measured on an H200, a step of
// Kimi-Linear-48B takes 2.10 ms with them, 2.17 with two (80 KiB, which fit), 2.22 with three groups of six rows (83 KiB, which fit as well).
// Groups of four rows, twice as many, are slower; so are rows of less than 2,048 columns in a ring; of more than 2,528, unmeasured.
inline constexpr int64_t kOneFewBytes = 116 << 10, kOneManyBytes = 112 << 10, kOneColumns = 4608, kOneRingColumns = 2048, kOneRingMost = 2528;
inline constexpr int kOneHeight = 8;

// grain: rows that stay together. Rows lie an odd multiple of 64 bytes apart (gemm_one_sm90.cu). split: x has a second row, and of few rows
// of weights so many less are under way that the kernel fits beside its neighbours as without.
constexpr OneConfig one_config(int64_t rows, int64_t in, int grain, int sm_count, bool split = false) {
  OneConfig c;
  if (in > kOneColumns || in % kGemmKStep != 0 || rows < grain || rows > int64_t{sm_count} * 192) return c;
  c.pitch = static_cast<int>(in * 2 + (in * 2 % 128 == 64 ? 0 : 64));
  const int64_t tiles = std::min(rows / grain, int64_t{sm_count}), each = (rows / grain + tiles - 1) / tiles * grain;
  if (each <= 32) {
    const int64_t room = (kOneFewBytes - (split ? 2 * in : 0)) / c.pitch;  // rows
    const int64_t fit = std::min(each, room), groups = (fit + kOneHeight - 1) / kOneHeight;
    c.height = static_cast<int>((fit + groups - 1) / groups / grain * grain);
    if (split && c.height * groups > room) c.height = static_cast<int>(fit / groups / grain * grain);
    if (c.height < grain) return c;
    c.groups = static_cast<int>(std::min((each + c.height - 1) / c.height, room / c.height));
  } else if (in >= kOneRingColumns && in <= kOneRingMost) {
    c.claims = true;
    c.height = kOneHeight;
    c.groups = static_cast<int>(kOneManyBytes / (int64_t{c.height} * c.pitch));
  }
  if (c.groups >= 2 || each <= c.height) c.tiles = tiles;
  return c;
}

// Numbers of tokens for which cuBLASLt's algorithms are measured: powers of two from 16 on.
constexpr int64_t gemm_token_bucket(int64_t tokens) {
  int64_t bucket = 16;
  while (bucket < tokens) bucket *= 2;
  return bucket;
}

}  // namespace k3::ops::cuda
