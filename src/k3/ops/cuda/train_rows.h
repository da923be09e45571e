// Purpose:  row-wise kernels of training: norms, sites, activations, the embedding, softmax of the loss, sums of parameters' gradients.
// Shapes:   activations BF16 [rows, width], row-major; parameters and their gradients FP32; widths of norms and sites even, at most 8,192.
// Units:    strides in elements.
// Memory:   as each struct says. `partial`: [kTeamGrid, width] FP32 scratch a sum.
// Threads:  one stream. No float atomics: every sum has one order.
// Errors:   CUDA's code of the launch; cudaErrorInvalidValue for widths that no kernel takes.
// Source:   the formulas of the ops' x_train.h; FP32 inside, results rounded once. Tolerance: 3e-3 of the norm for BF16 results
//           (their rounding is 1.7e-3), 1e-4 for FP32 sums.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

constexpr int kMostSites = 65;     // sources of a site
constexpr int64_t kPartialRows = 264;  // kTeamGrid

// y (+)= x, `count` numbers alike in dtype (BF16 or FP32).
int accumulate_launch(const void* x, void* y, int64_t count, bool f32, bool add, void* stream);
// FP32 to BF16.
int narrow_launch(const float* x, void* y, int64_t count, void* stream);
// total[i] += sum over rows of partial[row, i].
int sum_rows_launch(const float* partial, int64_t rows, int64_t width, float* total, void* stream);

struct NormTrain {
  int64_t rows, width;
  const void* x;
  int64_t x_stride;
  const float* weight;
  float eps;
  void* out;
  int64_t out_stride;
};
int norm_train_launch(const NormTrain& a, void* stream);

struct NormVjp {
  int64_t rows, width;
  const void* x;
  int64_t x_stride;
  const float* weight;
  float eps;
  const void* dout;
  int64_t dout_stride;
  void* dx;  // may be dout
  int64_t dx_stride;
  bool accumulate;
  float* partial;  // of the weight's gradient; null: not wanted
};
int norm_vjp_launch(const NormVjp& a, void* stream);

struct SiteTrain {
  int64_t tokens, width;
  int32_t sources;               // the last is the prefix
  const void* rows[kMostSites];  // [T, width] each; forward: of the prefix before delta
  const float *query, *norm;     // query null: one source
  float eps;
  // forward
  const void* delta;  // null: none
  void* prefix;       // written when there is a delta
  void* kept;         // receives the prefix
  void* out;
  // backward
  const void* dout;
  void* grads[kMostSites];
  bool fresh[kMostSites];
  const void* banked;  // gradient of the banked copy of the prefix; null: none
  void* ddelta;        // receives the prefix's gradient; null: none
  bool ddelta_fresh;
  float *query_partial, *norm_partial;  // null: not wanted
};
int site_train_launch(const SiteTrain& a, void* stream);
int site_vjp_launch(const SiteTrain& a, void* stream);

struct GluTrain {
  int64_t count;
  const void *gate, *up;
  void* out;
  const void* dout;
  void *dgate, *dup;  // either may be dout
  bool situ;
  float beta, linear_beta;  // linear_beta 0: none
};
int glu_train_launch(const GluTrain& a, void* stream);
int glu_vjp_launch(const GluTrain& a, void* stream);

// query = norm * projection; dnorm += dquery projection, dprojection += dquery norm (either may be null).
int fold_launch(const float* norm, const float* projection, float* query, int64_t count, void* stream);
int fold_vjp_launch(const float* norm, const float* projection, const float* dquery, float* dnorm, float* dprojection, int64_t count, void* stream);

int embedding_train_launch(const int32_t* ids, int64_t tokens, int64_t vocab, const void* table, int64_t width, void* out, void* stream);
// order [T]: tokens sorted by id, alike ones in their order; starts [distinct + 1] into it; ids [distinct].
int embedding_vjp_launch(const int32_t* order, const int32_t* starts, const int32_t* ids, int64_t distinct, const void* dout, int64_t width,
                         float* dtable, void* stream);

// Logits become losses [tokens] and gradients times scale; targets under 0: zeros. With grads null losses alone.
struct LossRows {
  int64_t tokens, vocab;
  const float* logits;
  const int32_t* targets;
  float scale;
  float* losses;
  void* grads;  // BF16
};
int loss_rows_launch(const LossRows& a, void* stream);
// *total += sum of the losses.
int loss_sum_launch(const float* losses, int64_t tokens, double* total, void* stream);

// The gate of MLA: y = o sigmoid(gate), o FP32 [count].
int gate_train_launch(const float* o, const void* gate, void* y, int64_t count, void* stream);

}  // namespace k3::ops::cuda
