// Internal to ops/optim. The parts of muon() on one unit, by instruction set.
//
// Matrices lie padded: rows start `stride` floats apart, a whole number of kPadCols that is odd, so that rows fall into
// different cache sets; what is beyond rows and columns is zero, and Newton-Schulz keeps it zero.
#pragma once

#include <cstdint>

#include "k3/ops/cpu/isa.h"

namespace k3::ops {

inline constexpr int64_t kPadCols = 16;  // the widest vector

constexpr int64_t pad_cols(int64_t cols) { return (cols + kPadCols - 1) / kPadCols * kPadCols; }
constexpr int64_t pad_stride(int64_t cols) { return pad_cols(cols) / kPadCols % 2 == 1 ? pad_cols(cols) : pad_cols(cols) + kPadCols; }

// out[i, j] = alpha * sum_k left[k, i] right[k, j] + beta * old[i, j] for i in [row_begin, row_end), which are multiples of kPadCols,
// and j in [0, cols), padded. The sum of an element is one chain over k. old may be null or out itself.
struct ProductJob {
  const float* left = nullptr;
  int64_t left_stride = 0;
  const float* right = nullptr;
  int64_t right_stride = 0;
  int64_t depth = 0;
  const float* old = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;  // of old, too
  int64_t row_begin = 0, row_end = 0, cols = 0;
  float alpha = 1, beta = 0;
  bool upper = false;  // the result is symmetric: what lies wholly below the diagonal is left out
};

struct MomentumJob {  // one row
  const float* grad;
  float* momentum;
  float scale, mu;
  bool nesterov;
  int64_t count;
  float* out;  // zeros up to padded
  int64_t padded;
};

struct UpdateJob {  // one row: weight = weight * keep - o * step
  float* weight;
  const float* o;
  uint16_t* bf16;  // may be null
  float keep, step;
  int64_t count;
};

struct MuonKernels {
  double (*momentum)(const MomentumJob& job);  // sum of squares of out
  void (*scale)(float* x, int64_t count, float factor);  // count: whole vectors
  // to[j, i] = from[i, j] for i in [row_begin, row_end), j in [0, cols), all multiples of kPadCols.
  void (*transpose)(const float* from, int64_t from_stride, int64_t row_begin, int64_t row_end, int64_t cols, float* to, int64_t to_stride);
  // Rows [row_begin, row_end) of what lies below the diagonal become those above it; size: padded.
  void (*mirror)(float* x, int64_t stride, int64_t row_begin, int64_t row_end);
  void (*product)(const ProductJob& job);
  void (*update)(const UpdateJob& job);
};

extern const MuonKernels kMuonPortable, kMuonAvx2, kMuonAvx512;

}  // namespace k3::ops
