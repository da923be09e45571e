// Purpose:  the one row-wise product kernel below linear and moe: y[t, o] = sum_i x[t, i] w[o, i].
// Shapes:   x: `tokens` row pointers to cols floats; w [.., cols] in any scheme; y: `tokens` row pointers.
//           For mxfp4 each group of 32 of x lies de-interleaved: 16 even elements, then 16 odd ones
//           (prepare_rows), because a byte of the weight holds an even and an odd element. i8: the natural order.
// Units:    none.
// Memory:   y[t][row - y_origin] is overwritten for rows [row_begin, row_end); x and y must not overlap.
// Threads:  pure functions; callers split rows over threads. panel is private to a call.
// Errors:   none (callers check).
// Source:   kernels.md 7. The sum of (t, o) is taken in this order whatever tokens, rows and panel are: blocks of
//           kBlockCols columns (a quarter of it on the portable path); in a block one vector accumulator, lanes = columns
//           mod the vector width (within the de-interleaved order), then a fixed tree over the lanes; blocks are added left
//           to right. Hence it depends on the instruction set only, and its error is that of at most 64 + cols / 1024 + 4
//           additions (AVX-512; 128 + ... for AVX2, 64 + cols / 256 + 2 for the portable path).
#pragma once

#include <cstdint>

#include "k3/ops/cpu/isa.h"
#include "k3/ops/weight.h"

namespace k3::ops {

inline constexpr int64_t kBlockCols = 1024;
inline constexpr int64_t kPanelRows = 64;
inline constexpr int64_t kPanelStride = kBlockCols + 16;  // not a multiple of 4 KiB: rows fall into different cache sets
inline constexpr int64_t kPanelFloats = kPanelRows * kPanelStride;

struct RowsJob {
  const float* const* x = nullptr;
  int64_t tokens = 0;
  Weight w;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  float* const* y = nullptr;
  int64_t y_origin = 0;
  float* panel = nullptr;  // kPanelFloats, 64-byte aligned: holds widened weights while many tokens pass over them
};

using RowsFn = void (*)(const RowsJob&);
RowsFn rows_fn(Isa isa);

void rows_portable(const RowsJob& job) noexcept;
void rows_avx2(const RowsJob& job) noexcept;
void rows_avx512(const RowsJob& job) noexcept;

// y[t, i] = sum_o x[t, o] w[o, i] for columns [col_begin, col_end): one chain over o for every (t, i).
struct ColsJob {
  const float* const* x = nullptr;  // [tokens] rows of w.rows floats
  int64_t tokens = 0;
  Weight w;  // not mxfp4, not i8
  int64_t col_begin = 0;
  int64_t col_end = 0;
  float* const* y = nullptr;  // [tokens] rows of w.cols floats
};

using ColsFn = void (*)(const ColsJob&);
ColsFn cols_fn(Isa isa);

void cols_portable(const ColsJob& job) noexcept;
void cols_avx2(const ColsJob& job) noexcept;
void cols_avx512(const ColsJob& job) noexcept;

// out[0..count) = x, rounded to BF16 if asked, de-interleaved in groups of 32 if asked (count % 32 == 0 then).
void prepare_row(const float* x, int64_t count, bool round_to_bf16, bool deinterleave, float* out) noexcept;

}  // namespace k3::ops
