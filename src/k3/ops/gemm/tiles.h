// Purpose:  the row-wise product on BF16 inputs by AMX tiles: y[t, o] = sum_i x[t, i] w[o, i], in two orientations.
// Shapes:   x packed by pack_tiles; w [.., cols], scheme bf16 or mxfp4, cols a multiple of 32; y: `tokens` row pointers.
// Units:    none.
// Memory:   y[t][row - y_origin] is overwritten for rows [row_begin, row_end). Packed x: tiles_packed_elements(tokens, cols)
//           BF16 numbers, tokens beyond the last as zeros.
// Threads:  pure functions; callers split rows over threads. panel is private to a call.
// Errors:   none (callers check).
// Source:   kernels.md 7. tiles: weights are the row side of the tile unit (as they lie in memory, or MXFP4 decoded into
//           the panel), tokens its column side, so weights need no packing and results of 16 x 16 are transposed on the way
//           out: for few tokens and for experts. dense_tiles: tokens are the row side and BF16 weights are packed strip by
//           strip, which many tokens pay back; results are stored as they are.
//           Products are exact in FP32. Sums are chains of FP32 additions: in tiles one over each block of kTilesBlock
//           columns, blocks added left to right: |y - ref| <= (kTilesBlock + cols / kTilesBlock) 2^-24 sum |x w|; in
//           dense_tiles one over all columns: cols 2^-24 sum |x w|; the bounds of such chains. The order depends on neither
//           tokens nor rows, so deterministic uses tiles for any number of tokens. Numbers under 2^-126 count as zero, as in
//           dots.h.
#pragma once

#include <cstdint>

#include "k3/ops/cpu/isa.h"
#include "k3/ops/weight.h"

namespace k3::ops {

inline constexpr int64_t kTilesBlock = 1024;
inline constexpr int64_t kTilesRows = 32;                         // rows of a strip; a worker's rows start at a multiple of it
inline constexpr int64_t kTilesPanelStride = kTilesBlock + 32;    // not a multiple of 4 KiB
inline constexpr int64_t kTilesPanelElements = kTilesRows * kTilesPanelStride + 4 * 512;  // and four results of 16 x 16

constexpr int64_t tiles_packed_elements(int64_t tokens, int64_t cols) { return (tokens + 15) / 16 * 16 * cols; }

struct TilesJob {
  const uint16_t* x = nullptr;
  int64_t tokens = 0;
  Weight w;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  float* const* y = nullptr;
  int64_t y_origin = 0;
  uint16_t* panel = nullptr;  // kTilesPanelElements, 64-byte aligned
};

// Where packing the weights is paid back (a strip costs about as much as 64 tokens that meet it gain).
inline constexpr int64_t kDenseTilesFrom = 96;
inline constexpr int64_t kDenseTilesBlock = 512;

struct DenseTilesJob {
  const uint16_t* x = nullptr;  // BF16 rows, x_stride apart; readable up to a whole 16 tokens
  int64_t x_stride = 0;
  int64_t tokens = 0;
  Weight w;  // bf16, cols a multiple of 32
  int64_t row_begin = 0;  // a multiple of kTilesRows
  int64_t row_end = 0;
  float* y = nullptr;  // element [0, 0]; rows y_stride apart
  int64_t y_stride = 0;
  uint16_t* panel = nullptr;  // kTilesPanelElements, 64-byte aligned
};

// Fewer tokens stream weights a quarter faster through FP32 rows; deterministic takes tiles all the same.
inline constexpr int64_t kTilesFrom = 5;

constexpr bool tiles_can(Isa isa, const Weight& w) {
  return isa >= Isa::amx && (w.scheme == Scheme::bf16 || scheme_has_scales(w.scheme)) && w.cols % 32 == 0;
}

void tiles_amx(const TilesJob& job) noexcept;
// The same arithmetic without the tile unit (and slowly), so that machines without AMX can test everything around it.
void tiles_emulated(const TilesJob& job) noexcept;
void dense_tiles_amx(const DenseTilesJob& job) noexcept;
void dense_tiles_emulated(const DenseTilesJob& job) noexcept;

// Packs tokens [begin, end) of BF16 rows, begin a multiple of 16: [token block][column block of 32][pair][token][2].
void pack_tiles_avx512bf16(const uint16_t* const* rows, int64_t begin, int64_t end, int64_t cols, uint16_t* packed) noexcept;

}  // namespace k3::ops
