// Purpose:  causal attention of MLA for training, in the expanded form: forward with log-sum-exps and largest logits, and its vjp.
// Shapes:   q [T, H, nope + rope], keys [T, H (nope + value)] (each head's key part, then its value), shared key [T, rope] with a
//           stride, do and gradients BF16; out FP32 [T, H value] (a rounded output biases the vjp's do . o; training.md 9, "output
//           side"); logsum and delta FP32 [T, H]; nope + rope at most 192, value at most 128; offsets [B + 1] in device memory.
// Units:    logits are scale q . k.
// Memory:   outputs overwritten; largest [H] is raised. dshared [T, H, rope]: by head.
// Threads:  one stream. dq, and dk with dv, are kernels of their own, each of which makes the probabilities again: no atomics.
// Errors:   CUDA's code of the launch; cudaErrorInvalidValue for heads that are too wide.
// Source:   mla_train.h. mma.sync, FP32 sums, P and dS rounded to BF16 for their products. Tolerance against FP32 on the same BF16
//           inputs, norm ratio: out 3e-3 (probabilities are rounded), logsum 1e-4 absolute, gradients 8e-3 (as kernels.md 9 has for KDA).
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

struct MlaTrain {
  int32_t heads, nope, rope, value, sequences, longest;
  const int32_t* offsets;
  const void *q, *keys, *shared;
  int64_t shared_stride;
  float scale;
  float *out, *logsum;
  float* largest;  // null: not wanted
  // vjp
  const void* d_out;   // [T, H value]
  const float* delta;  // [T, H]: do . o
  void *dq, *dkeys, *dshared;
};
bool mla_train_takes(int64_t nope, int64_t rope, int64_t value);
int mla_train_forward_launch(const MlaTrain& a, void* stream);
int mla_train_vjp_launch(const MlaTrain& a, void* stream);

// dy becomes do = dy sigmoid(gate); dgate = dy o s (1 - s) (gate null: neither); delta = do . o.
struct MlaGateVjp {
  int64_t tokens;
  int32_t heads, value;
  const float* out;
  const void* gate;
  void *dy, *dgate;
  float* delta;
};
int mla_gate_vjp_launch(const MlaGateVjp& a, void* stream);
// to[t, rank + i] (+)= sum over heads of dshared[t, h, i]; `stride` of to.
int mla_shared_vjp_launch(const void* dshared, int64_t tokens, int32_t heads, int32_t rope, void* to, int64_t stride, bool accumulate, void* stream);

}  // namespace k3::ops::cuda
