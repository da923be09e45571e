// Purpose:  routed experts on the GPU for many tokens: grouped products over rows sorted by expert, and their weighted sum.
// Shapes:   z [T, R] bf16, rows z_stride elements apart; ids [T, topk] i32, a token's distinct; rows [T * topk, R] bf16: the
//           results w2_e glu(w1_e z_t, w3_e z_t) of the slots in the order of experts.
//           combine: out[t] = sum_j weights[t, j] row of (t, j), over local ids.
// Units:    none.
// Memory:   rows beyond the last are not written. Workspace: moe_grouped_workspace_bytes, aligned to 256, one for all calls
//           of a step (combine reads what prepare left). Nothing is allocated; experts without rows are not read.
//           Capturable; `tokens` fixes the launches, token_count the work.
// Threads:  one call per workspace at a time.
// Errors:   K3_CHECK on shapes that moe_grouped_serves refuses and on 2^22 tokens or more; CudaStatus of the launches.
//           T = 0 is legal.
// Source:   kernels.md 7. Products BF16 x BF16 into FP32 with exact weights; activation and rows are rounded to BF16; the
//           sum is FP32 in the order of ids, rounded once; the norm takes the rounded sum. Tolerance against moe_ref, norm
//           ratio: 4e-3. The sum of an output does not depend on T, on neighbours or on timing.
#pragma once

#include <cstdint>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/moe/cuda/moe_grouped_types.h"

namespace k3::ops::cuda {

struct MoeGroupedCuda {
  MoeExpertsCuda weights;
  MoeGlu glu;
  const void* z = nullptr;
  int64_t z_stride = 0;                  // a multiple of 8
  const int32_t* ids = nullptr;          // global; those outside [first_expert, first_expert + experts) are left out
  const int32_t* token_count = nullptr;  // on the device; null: `tokens`
  int tokens = 0, topk = 1, first_expert = 0;
  int routed_experts = 0;  // that ids choose among; 0: those of weights
  void* rows = nullptr;
  void* workspace = nullptr;
};

// The products of experts begin .. end - 1 alone, for weights that come to the GPU in parts (MoeExpertsCuda::places): those of
// them that lie in host memory have been copied to the slots from `staged` on, in their order; negative: they are read over
// the bus.
struct MoeGroupedPart {
  int begin = 0, end = 0, staged = -1;
};

struct MoeGroupedSum {
  const float* weights = nullptr;     // [T, topk]
  void* out = nullptr;                // [T, R] bf16; may be null
  float* out_f32 = nullptr;           // the sum before its rounding; may be null
  const void* norm_weight = nullptr;  // bf16 [R]: out = norm of the rounded sum; null: the rounded sum
  float eps = 1e-5F;
};

// Pure. R, F multiples of 32 (mxfp4) or 8 (bf16), R up to 8,192, E up to 1,024, Hopper.
bool moe_grouped_serves(MoeWeights kind, int64_t experts, int64_t width, int64_t hidden, const DeviceInfo& device);
int64_t moe_grouped_workspace_bytes(int64_t tokens, int64_t topk, int64_t experts, int64_t width, int64_t hidden);

CudaStatus moe_grouped_prepare_cuda(const MoeGroupedCuda& args, Stream stream);   // plan, rows of z in the order of experts
CudaStatus moe_grouped_products_cuda(const MoeGroupedCuda& args, Stream stream);  // needs prepare
CudaStatus moe_grouped_part_cuda(const MoeGroupedCuda& args, const MoeGroupedPart& part, Stream stream);  // of the products
CudaStatus moe_grouped_cuda(const MoeGroupedCuda& args, Stream stream);           // both
CudaStatus moe_grouped_combine_cuda(const MoeGroupedCuda& args, const MoeGroupedSum& sum, Stream stream);

}  // namespace k3::ops::cuda
