// Purpose:  the per-head kernels behind kda(): one run of tokens of one head, recurrent or in chunks.
// Shapes:   q, k, v, z, out: row t at + t * row_stride, D numbers; b: + t * beta_stride; state [D, D] V-first.
// Units:    a = exp(a_log); decay as natural logarithm.
// Memory:   state is updated in place; scratch holds kda_scratch_floats(D) floats, private to the call.
// Threads:  pure functions of their arguments.
// Errors:   none; kda() has checked everything.
// Source:   kernels.md 1, 2, 4.
#pragma once

#include <cstdint>

namespace k3::ops {

constexpr int64_t kKdaChunk = 16;
constexpr float kCentredBound = -5.0F;  // half a chunk of such decays is e^-40: it and its inverse are BF16 numbers

struct KdaRun {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* z = nullptr;
  const float* b = nullptr;
  float* out = nullptr;
  int64_t tokens = 0;
  int64_t dim = 0;
  int64_t row_stride = 0;
  int64_t beta_stride = 0;
  const float* dt_bias = nullptr;
  float a = 1;
  bool bounded = false;
  float lower_bound = 0;
  float scale = 1;  // of q: D^-0.5
  float* state = nullptr;
  float* scratch = nullptr;
};

// The recurrence on prepared inputs, all rows padded to `padded` numbers (unit keys kn, scaled queries qn, log decay
// g); beta [tokens]. tokens <= kKdaChunk. Also lets tests feed vectors that are not normalised.
struct KdaPrepared {
  const float* kn = nullptr;
  const float* qn = nullptr;
  const float* g = nullptr;
  const float* beta = nullptr;
  const float* v = nullptr;
  float* out = nullptr;
  int64_t tokens = 0;
  int64_t dim = 0;
  int64_t padded = 0;
  int64_t row_stride = 0;  // of v and out
  float* state = nullptr;
  float* scratch = nullptr;
  bool centred = false;  // every g is at least kCentredBound
};

struct KdaKernels {
  void (*recurrent)(const KdaRun&);
  void (*chunk)(const KdaRun&);
  void (*recurrent_prepared)(const KdaPrepared&);
  void (*chunk_prepared)(const KdaPrepared&);
};

extern const KdaKernels kKdaPortable, kKdaAvx2, kKdaAvx512;

// The chunk form with its products on BF16 tiles; D a multiple of 32. The emulation needs avx512bf16 and is slow.
void kda_tiles_amx(const KdaRun& run);
void kda_tiles_emulated(const KdaRun& run);

constexpr int64_t kda_padded(int64_t dim) { return (dim + 15) / 16 * 16; }

// 16 arrays of [16, padded] or [padded, 16], then the small C x C matrices and row vectors.
constexpr int64_t kda_scratch_floats(int64_t dim) { return 16 * kKdaChunk * kda_padded(dim) + 4 * kda_padded(dim) + 4096; }

}  // namespace k3::ops
