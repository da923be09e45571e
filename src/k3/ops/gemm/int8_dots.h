// Purpose:  the row-wise product on 8-bit inputs by integer dot products: y[t, o] = sum_i x[t, i] w[o, i]. Lossy; only when
//           asked for (Ctx::int8_activations).
// Shapes:   x: `tokens` rows as int8_quantise_row writes them; w [.., cols], scheme i8 or mxfp4; y: `tokens` row pointers.
//           cols is a multiple of 32.
// Units:    in each group of 32 columns x = q * scale, q in -127..127, scale FP32.
// Memory:   y[t][row - y_origin] is overwritten for rows [row_begin, row_end). A row of x takes int8_row_bytes: codes, then
//           scales, then the sums of the codes, by group.
// Threads:  pure functions; callers split rows over threads. panel is private to a call.
// Errors:   none (callers check). A group of x with a NaN or an infinity makes outputs that are not finite.
// Source:   scale = amax / 127, q = x * (127 / amax) to nearest even; a group whose amax is under 2^-100 counts as zero.
//           Weights are integers times a power of two: i8 its codes, mxfp4 twice its values (0 1 2 3 4 6 8 12); groups of
//           mxfp4 with scale byte 0 or 1 count as zero. Integer dots of a group are exact, sums over groups are FP32:
//           |y - ref| <= 2e-6 * sum_i |x_i w_i| over the quantised x. With by_rows the sum of (t, o) is taken in one order
//           whatever tokens and rows are; without it many tokens take a kernel that sums groups in another order.
#pragma once

#include <cstdint>

#include "k3/ops/cpu/isa.h"
#include "k3/ops/weight.h"
#include "k3/tensor/tensor.h"

namespace k3::ops {

inline constexpr int64_t kInt8DotGroup = 32;
inline constexpr int64_t kInt8Block = 1024;   // columns
inline constexpr int64_t kInt8RowGrain = 32;  // rows of a worker are whole tiles of the kernel
inline constexpr int64_t kInt8PanelBytes = 32 * kInt8Block + 32 * (kInt8Block / kInt8DotGroup) * 4 + kInt8Block;

// Bytes between rows of x: whole lines, an odd number of them.
constexpr int64_t int8_scales_at(int64_t cols) { return (cols + 63) / 64 * 64; }
constexpr int64_t int8_row_bytes(int64_t cols) { return (int8_scales_at(cols) + cols / 4 + 127) / 128 * 128 + 64; }

inline const float* int8_scales(const uint8_t* row, int64_t cols) {
  return reinterpret_cast<const float*>(row + int8_scales_at(cols));
}
inline const int32_t* int8_sums(const uint8_t* row, int64_t cols) {
  return reinterpret_cast<const int32_t*>(row + int8_scales_at(cols) + cols / 8);
}

struct Int8Job {
  const uint8_t* const* x = nullptr;
  int64_t tokens = 0;
  Weight w;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  float* const* y = nullptr;
  int64_t y_origin = 0;
  uint8_t* panel = nullptr;  // kInt8PanelBytes, 64-byte aligned
  bool by_rows = true;
};

constexpr bool int8_can(Scheme scheme) { return scheme_has_scales(scheme); }

using Int8Fn = void (*)(const Int8Job&);
Int8Fn int8_fn(Isa isa);

void int8_portable(const Int8Job& job) noexcept;
void int8_avx2(const Int8Job& job) noexcept;
void int8_avx512bf16(const Int8Job& job) noexcept;

// Columns [begin, begin + count) of a row of `cols`, whole groups. Every instruction set gives the same bytes.
void int8_quantise_row(const float* x, int64_t begin, int64_t count, int64_t cols, uint8_t* row) noexcept;

// y = x W^T on inputs quantised as above, double accumulation.
void int8_linear_ref(const Tensor& x, const Weight& w, const Tensor& y) noexcept;

}  // namespace k3::ops
