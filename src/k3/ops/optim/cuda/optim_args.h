// Internal to ops/optim. What the CUDA kernels take. No CUDA header, no Result. Launchers return a cudaError_t.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

// Tensors a launch: their list is a parameter (of up to 32 KB since CUDA 12.1).
inline constexpr int kAdamwList = 256, kGradList = 512, kMuonList = 256;

struct AdamwOne {
  float *weight, *first, *second;
  const float* grad;
  void* bf16;  // may be null
  int64_t count;
  float keep, step;  // 1 - lr decay, lr / (1 - beta1^step)
};
struct AdamwLaunch {
  AdamwOne tensors[kAdamwList];
  int32_t first_block[kAdamwList + 1];
  int32_t count;
  float one_minus_beta1, beta2, one_minus_beta2, second_scale, eps;
  const float* scale;  // may be null
};
inline constexpr int64_t kAdamwBlock = 4096;  // numbers a block
int adamw_launch(const AdamwLaunch& a, void* stream);

struct GradOne {
  const float* data;
  int64_t count;
};
struct GradLaunch {
  GradOne tensors[kGradList];
  int32_t first_block[kGradList + 1];
  int32_t count;
  int32_t numbers[kGradList];  // of the tensors among all
  double* sums;          // of this launch's blocks
  int32_t* owners;       // their tensors
};
inline constexpr int64_t kGradBlock = 8192;
struct GradResult {  // GradNorm<float>
  double norm;
  float scale;
  int32_t bad_tensor;
};
int grad_sums_launch(const GradLaunch& a, void* stream);
int grad_total_launch(const double* sums, const int32_t* owners, int64_t blocks, double max_norm, GradResult* out, void* stream);

struct QkClipLaunch {
  int32_t heads, nope, rope, value;
  float *q, *kv;
  void *q_bf16, *kv_bf16;  // may be null
  int64_t q_cols, kv_cols;
  const float* max_logits;
  float* gamma;  // may be null
  double tau;
};
int qk_clip_launch(const QkClipLaunch& a, void* stream);

struct QuantileLaunch {
  const float* scores;
  int64_t tokens, stride;
  int32_t experts, topk;
  const float* bias;
  const uint8_t* valid;  // may be null
  float* cutoffs;        // [tokens], scratch
  int32_t* histogram;
};
int quantile_accumulate_launch(const QuantileLaunch& a, void* stream);
// scratch: [experts + 1]
int quantile_update_launch(int32_t experts, int32_t topk, double rate, int32_t* histogram, float* bias, double* scratch, void* stream);
int expert_load_launch(const int32_t* ids, int64_t tokens, int32_t topk, const uint8_t* valid, int32_t* load, void* stream);
int sign_balance_launch(const int32_t* load, int32_t experts, float rate, float* bias, void* stream);

struct FakeQuantLaunch {  // rows aligned to 16 bytes
  const void* in;
  void* out;
  bool in_f32, out_f32;
  int64_t in_stride, out_stride, rows, cols;
};
int mxfp4_fake_quant_launch(const FakeQuantLaunch& a, void* stream);
int mxfp8_fake_quant_launch(const FakeQuantLaunch& a, void* stream);

// Units of one group (muon_groups.h). X, the iterate, is [units, r, c] bf16: a unit of [rows, cols] lies in the first rows and columns, a
// tall one transposed, and zeros around it.
struct MuonOne {
  float* weight;
  float* momentum;  // null: the gradient is orthogonalised as it is, and the weight becomes the result
  const float* grad;
  void* bf16;  // may be null
  int64_t stride;
  int32_t first_unit;
  int32_t rows, cols;
  float keep, step;  // 1 - lr decay, lr * update scale
};
struct MuonLaunch {
  MuonOne tensors[kMuonList];
  int32_t count;
  int32_t units;
  int32_t r, c;     // multiples of 8
  int32_t longest;  // rows * cols of the largest unit
  float mu;
  bool nesterov;
  const float* scale;  // may be null
  double* squares;     // [units, muon_parts(longest)]
  void* x;
};
inline constexpr int64_t kMuonPart = 8192;
constexpr int64_t muon_parts(int64_t longest) { return (longest + kMuonPart - 1) / kMuonPart; }
int muon_momentum_launch(const MuonLaunch& a, void* stream);  // momentum and squares
int muon_gather_launch(const MuonLaunch& a, void* stream);    // X
int muon_update_launch(const MuonLaunch& a, void* stream);    // weights from X

// out[u][i, j] = alpha * sum_k left[u](i, k) right[u](k, j) + beta * old[u][i, j], all bf16, sums FP32; element (i, k) of left lies at
// i * left_row + k * left_col.
struct NsProductLaunch {
  const void *left, *right, *old;  // old may be null
  void* out;
  int64_t left_row, left_col, left_unit, right_row, right_col, right_unit, out_row, out_unit;
  int32_t units, rows, cols, depth;
  float alpha, beta;
};
int ns_product_launch(const NsProductLaunch& a, void* stream);

}  // namespace k3::ops::cuda
