// Purpose:  routed experts on the GPU for few tokens (to about 256), and the weighted sum of their results.
// Shapes:   z [T, R] bf16; ids [T, topk] i32, a token's distinct; slot_out [T * topk, R] f32, row t * topk + j the result of
//           that slot, w2_e glu(w1_e z_t, w3_e z_t), unweighted. The sum: out[t] = sum_j weights[t, j] slot_out[t * topk +
//           j] over local ids.
// Units:    none.
// Memory:   rows of slot_out whose expert is not local stay as they are. Workspace: moe_stream_workspace_bytes, aligned to
//           256; all zero before its first use, and a call leaves its counters zero, so that it may serve any later call of
//           this op. Nothing is allocated; only chosen experts are read. Capturable: `tokens` fixes the launch, token_count
//           the work.
// Threads:  one call per workspace at a time. Its blocks wait for each other: one a multiprocessor, all of them resident.
// Errors:   K3_CHECK on shapes: R, F multiples of 32 (mxfp4) or 8 (bf16); T up to 1024; what moe_stream_config does not
//           serve. CudaStatus of the launches. T = 0 is legal.
// Source:   kernels.md 7. Products BF16 x BF16 into FP32 with exact weights; the activation is rounded to BF16; the sum is
//           FP32 in the order of ids, rounded once; the norm takes the rounded sum. Tolerance against moe_ref, norm ratio:
//           4e-3. The order of a product's sum depends on T and on the number of multiprocessors, not on timing: equal calls
//           give equal bits.
#pragma once

#include <cstdint>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

int64_t moe_stream_workspace_bytes(int64_t tokens, int64_t topk, int64_t experts, int64_t hidden);

// Calls that may be given logits instead of ids: then each block routes for itself (router.h), and weights are not read.
bool moe_stream_routes(int64_t tokens, int64_t topk);

// Whether a call of so many tokens has room for shared experts of so many columns.
bool moe_stream_takes_shared(const MoeExpertsCuda& experts, int64_t tokens, int64_t topk, int64_t columns, const DeviceInfo& device);

CudaStatus moe_stream_cuda(const MoeStreamCuda& args, Stream stream);
CudaStatus moe_combine_cuda(const MoeCombineCuda& args, Stream stream);

}  // namespace k3::ops::cuda
