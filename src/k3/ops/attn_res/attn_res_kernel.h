// Purpose:  the two row kernels behind attn_res().
// Shapes:   rows of n floats.
// Units:    none.
// Memory:   mix: out may be any of the rows.
// Threads:  pure functions.
// Errors:   none.
// Source:   kernels.md 6.
#pragma once

#include <cstdint>

namespace k3::ops {

struct AttnResKernels {
  // query . x and sum x^2, accumulated in double: the score multiplies both errors by its own size, and the rows
  // come from memory anyway.
  void (*scores)(const float* x, const float* query, int64_t n, double* dot, double* squares);
  void (*mix)(const float* const* rows, const float* weights, int64_t count, int64_t n, float* out);
};

extern const AttnResKernels kAttnResPortable, kAttnResAvx2, kAttnResAvx512;

}  // namespace k3::ops
