// Purpose:  routed experts on GPUs that are not Hopper: to be right rather than fast.
// Shapes:   z [T, R] bf16, ids [T, topk] i32, weights [T, topk] f32, out [T, R] bf16. A bank holds each expert's matrices as checkpoints
//           store them: gate_up: w1 [F, R], w3 [F, R]; down: w2 [R, F]; mxfp4: codes of all of a bank's half, then its scales.
// Units:    none.
// Memory:   hidden [T * topk, F] bf16 is scratch. Experts outside [first, first + experts) are left out.
// Threads:  stream order.
// Errors:   cudaError_t of the launch.
// Source:   kernels.md 7: FP32 sums, the activation rounded to BF16, the sum over ids in their order, rounded once. Tolerance against
//           moe_ref (norm ratio): 4e-3.
#pragma once

#include <cstdint>

#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

struct MoePlain {
  MoeExpertsCuda weights;  // w13, w2 as above; factors unused
  MoeGlu glu;
  const void* z = nullptr;
  const int32_t* ids = nullptr;
  const float* gates = nullptr;
  int tokens = 0, topk = 0, first_expert = 0;
  void* hidden = nullptr;
  void* out = nullptr;
};

// Of one expert in a bank's half of so many rows and columns: codes, then scales.
constexpr int64_t moe_plain_codes(MoeWeights kind, int64_t rows, int64_t cols) {
  return kind == MoeWeights::mxfp4 ? rows * cols / 2 : rows * cols * 2;
}
constexpr int64_t moe_plain_bytes(MoeWeights kind, int64_t rows, int64_t cols) {
  return moe_plain_codes(kind, rows, cols) + (kind == MoeWeights::mxfp4 ? rows * cols / 32 : 0);
}
int moe_plain_launch(const MoePlain& args, CUstream_st* stream);

}  // namespace k3::ops::cuda
