// Purpose:  the per-head kernels behind kda_train: forward and vjp of one head of one sequence, in chunks of 16 tokens.
// Shapes:   rows of activations at + t * row_stride, D numbers; b, db at + t * heads; states [D, D] V-first; kept states
//           [padded, padded] K-first at + block * kept_stride.
// Units:    as in kda_train.h.
// Memory:   scratch holds kda_train_scratch_floats, private to the call; sums is added to.
// Threads:  pure functions of their arguments.
// Errors:   none; kda_train.cc has checked everything.
// Source:   kernels.md 2 and 3, training.md 9.
#pragma once

#include <cstdint>

namespace k3::ops {

constexpr int64_t kTrainChunk = 16;
constexpr int64_t kTrainBlockChunks = 4;  // chunks between two kept states
constexpr int64_t kTrainMaxTaps = 8;

constexpr int64_t kda_train_padded(int64_t dim) { return (dim + 15) / 16 * 16; }

// Sums over the tokens of a task, of one head: [rows, padded].
constexpr int64_t kTrainSumBias = 0, kTrainSumDecay = 1, kTrainSumNorm = 2, kTrainSumTaps = 3;
constexpr int64_t kda_train_sum_rows(int64_t taps) { return kTrainSumTaps + 3 * taps; }

struct KdaTrainRun {
  const float* in[3] = {};  // q, k, v before the convolution
  const float* z = nullptr;
  const float* gate = nullptr;
  const float* b = nullptr;
  const float* taps[3] = {};  // [D, K] of this head
  const float* dt_bias = nullptr;
  const float* norm = nullptr;
  float a = 1;  // exp(a_log)
  bool bounded = false;
  float lower_bound = 0;
  float eps = 0;
  float scale = 1;  // of the queries: D^-0.5
  int64_t tokens = 0, dim = 0, taps_count = 0, row_stride = 0, heads = 0;
  const float* initial = nullptr;  // or null: zero
  float* kept = nullptr;           // forward: written when not null; vjp: read
  int64_t kept_stride = 0;
  float* scratch = nullptr;
  // Forward.
  float* y = nullptr;
  float* final = nullptr;
  // Vjp.
  const float* dy = nullptr;
  const float* d_final = nullptr;
  float* d_initial = nullptr;
  float* d_in[3] = {};
  float* dz = nullptr;
  float* dgate = nullptr;
  float* db = nullptr;
  float* sums = nullptr;
};

struct KdaTrainKernels {
  void (*forward)(const KdaTrainRun&);
  void (*vjp)(const KdaTrainRun&);
};
extern const KdaTrainKernels kKdaTrainPortable, kKdaTrainAvx2, kKdaTrainAvx512;

// Arrays of one chunk: 16 of [16, padded], a state, two of 16 x 16 and a few rows (KdaTrainChunk).
constexpr int64_t kda_train_chunk_floats(int64_t padded) {
  return 16 * kTrainChunk * padded + padded * padded + 2 * padded + 2 * kTrainChunk * kTrainChunk + 4 * kTrainChunk;
}
// Four chunks; a state and its gradient, both transposed; taps; what only one chunk of the vjp needs (KdaTrainBack).
constexpr int64_t kda_train_scratch_floats(int64_t dim) {
  const int64_t padded = kda_train_padded(dim);
  return kTrainBlockChunks * kda_train_chunk_floats(padded) + 4 * padded * padded +
         (14 * kTrainChunk + 6 * kTrainMaxTaps + 4 + 3 * (kTrainChunk + kTrainMaxTaps)) * padded + 4 * kTrainChunk * kTrainChunk + 64;
}

}  // namespace k3::ops
