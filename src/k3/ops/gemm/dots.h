// Purpose:  the row-wise product on BF16 inputs by the BF16 dot instruction: y[t, o] = sum_i x[t, i] w[o, i].
// Shapes:   x: `tokens` row pointers to cols BF16 numbers in their natural order; w [.., cols], scheme bf16, mxfp4 or i8;
//           y: `tokens` row pointers.
// Units:    none.
// Memory:   y[t][row - y_origin] is overwritten for rows [row_begin, row_end). Rows of x are best kDotsPad apart from a
//           multiple of 4 KiB (dots_stride), or they fall into the same cache sets.
// Threads:  pure functions; callers split rows over threads. panel is private to a call.
// Errors:   none (callers check).
// Source:   kernels.md 7. Products of BF16 numbers are exact in FP32; sums are FP32. The sum of (t, o) is taken in one order
//           whatever tokens, rows and panel are: blocks of kDotsBlock columns; in a block one vector accumulator whose lane
//           j takes columns 2 j + 1 and 2 j of every 32 in turn, then a fixed tree over the lanes; blocks left to right.
//           So it depends on the instruction set only. The instruction takes numbers under 2^-126 as zero, hence groups of
//           MXFP4 with scale byte 0 or 1 (weights under 2^-123) count as zero; other weights are exact.
#pragma once

#include <cstdint>

#include "k3/ops/cpu/isa.h"
#include "k3/ops/weight.h"

namespace k3::ops {

inline constexpr int64_t kDotsBlock = 1024;
inline constexpr int64_t kDotsPanelRows = 64;
inline constexpr int64_t kDotsPanelStride = kDotsBlock + 32;
inline constexpr int64_t kDotsPanelElements = kDotsPanelRows * kDotsPanelStride;
inline constexpr int64_t kDotsRowGrain = 8;  // rows of a worker are whole tiles of the kernel

// Elements between rows of BF16 inputs: whole lines, an odd number of them.
constexpr int64_t dots_stride(int64_t cols) { return (cols + 63) / 64 * 64 + 32; }

struct DotsJob {
  const uint16_t* const* x = nullptr;
  int64_t tokens = 0;
  Weight w;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  float* const* y = nullptr;
  int64_t y_origin = 0;
  uint16_t* panel = nullptr;  // kDotsPanelElements, 64-byte aligned: decoded weights while many tokens pass over it
};

// The dot product is there, pays, and the weight's scheme is bf16 or mxfp4. On Zen 4 it does twice the work of an FP32
// multiply-add (210 against 105 GFLOP/s a core); processors with tiles do half as much with it (89 against 177) and take
// tiles for any number of tokens.
constexpr bool dots_can(Isa isa, Scheme scheme) {
  return isa == Isa::avx512bf16 && (scheme == Scheme::bf16 || scheme == Scheme::mxfp4);
}

// Weights of scheme i8 are exact in BF16 too. For a few tokens the row kernel has less to do; it sums in another order.
constexpr bool dots_can_many(Isa isa, Scheme scheme, int64_t tokens) {
  return isa >= Isa::avx512bf16 && scheme == Scheme::i8 && tokens > 4;
}

void dots_avx512bf16(const DotsJob& job) noexcept;

// out[0..count) = x rounded to BF16, nearest even; numbers under 2^-126 become zero.
void to_bf16_avx512bf16(const float* x, int64_t count, uint16_t* out) noexcept;

}  // namespace k3::ops
