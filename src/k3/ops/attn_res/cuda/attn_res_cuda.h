// Purpose:  Block AttnRes on the GPU: add, bank, mix and norm of one site in one launch; the inter-block part of all
//           sites of a block at once.
// Shapes:   bank [N, T, hidden], prefix, delta, out [T, hidden] bf16, rows strided; query [hidden] f32 (norm weight times
//           projection); norm [hidden] f32 or bf16. hidden is a multiple of 8, at most 16,384; rows are aligned to 16
//           bytes.
// Units:    strides in elements.
// Memory:   prefix_out and bank_out receive P = prefix + rest + delta, rounded once (prefix_out may be prefix), rest_out what that
//           cut off; the mix then sees both, 16 bits of P, and without rest_out the rounded P. out is overwritten and may be delta;
//           out_rest receives what rounding cut off it.
//           Without prefix P is delta; without both the mix is over the bank alone. With N = 0 out is (the norm of) P.
// Threads:  asynchronous on the stream. As a dependent launch (programmatic) it reads everything but delta before the
//           kernel right in front of it has ended: only delta may be that kernel's result.
// Errors:   K3_CHECK on shapes and alignment; a launch that failed is in the CudaStatus.
// Source:   kernels.md 6. The mix and its norm are FP32 and out is rounded once: norm ratio 3e-3 against attn_res_ref on
//           the same BF16 rows (kernels.md 9). P is bit equal to an add of its own, (prefix + rest) + delta in FP32. Merge (inter_max): row 0 of the bank
//           is y1 of the inter-block part with mass inter_sum; h = (e^(m1-m) y1 + e^(sP-m) P) / (e^(m1-m) d1 + e^(sP-m)).
#pragma once

#include "k3/ops/attn_res/cuda/attn_res_args.h"
#include "k3/ops/cuda/launch.h"

namespace k3::ops::cuda {

// Several blocks a token while that fits the device (latency), then one pass with a ring of rows (bandwidth); more than 8
// banked rows take a loop that reads each row twice.
AttnResPlan attn_res_plan(int64_t tokens, int64_t hidden, int sources, const DeviceInfo& device);

CudaStatus attn_res_cuda(const AttnResSite& site, Stream stream);
CudaStatus attn_res_cuda(const AttnResSite& site, const AttnResPlan& plan, Stream stream);  // for benches and tests

// y1 [sites, T, hidden] bf16 and m1, d1 [sites, T] f32 of up to 24 sites over up to 8 banked rows. hidden is a multiple
// of 64. Scores and weights have 16 bits of each factor: y1 is within 3e-3, m1 within 1e-4, d1 within 2e-4 relative. The
// rows are read twice (once for the scores, once to mix). attn_res_cuda takes site i's part as its bank: y1 + i *
// y1_site_stride, inter_max = m1 + i * T, inter_sum = d1 + i * T.
constexpr int64_t attn_res_inter_workspace_bytes(int64_t tokens) { return tokens * 768; }
CudaStatus attn_res_inter_cuda(const AttnResInter& a, Stream stream);

}  // namespace k3::ops::cuda
