// Purpose:  what the short convolution of prefill is given on a GPU; plain C, so that a shared library can export it.
// Shapes:   see the fields; W channels a part, a multiple of 8; 4 taps.
// Units:    strides in elements.
// Memory:   every pointer is one of the device; nothing is owned.
// Threads:  none.
// Errors:   none; short_conv_cuda.h checks.
// Source:   model.md 3.3.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
namespace k3::ops::cuda {
#endif

typedef struct ShortConvArgs {
  const void* x[3];  // BF16 [T, W] of each part (q, k, v), rows x_stride apart; 16-byte aligned, strides a multiple of 8
  int64_t x_stride[3];
  void* y[3];  // BF16 [T, W]
  int64_t y_stride[3];
  const float* taps[3];  // [W, 4], the last one multiplies the current token
  int32_t parts;         // 1 .. 3
  int32_t channels;      // W
  int32_t tokens;        // rows of x; those past offsets[sequences] are left alone
  int32_t sequences;
  const int32_t* offsets;  // [sequences + 1]
  const int32_t* slots;    // [sequences]; below 0: zero output, no state
  const int32_t* fresh;    // [sequences], not 0: the sequence starts here, its slot is not read; null: none does
  void* conv;              // [slots, parts, 3 (oldest first), W] BF16 or FP32; 16-byte aligned, stride a multiple of 8
  int64_t conv_stride;
  int32_t conv_bf16;
  int32_t exports;                  // how many tails are wanted on the way
  const int32_t* export_sequences;  // [exports]; below 0: none
  const int32_t* export_tokens;     // after so many tokens of the sequence in this call, 1 .. its length
  const int32_t* export_slots;      // slots of no sequence of the call
  int32_t dependent;                // programmatic dependent launch
} ShortConvArgs;

#ifdef __cplusplus
}  // namespace k3::ops::cuda
#endif
