// Purpose:  multi-head latent attention on the GPU: rows appended to the paged latent cache, absorbed decode and verify over
// it, the
//           products around them, and causal attention over expanded keys and values for prefill.
// Shapes:   latent rows 576 = 512 (normalised latent) + 64 (shared key); heads of 128 + 64 (query, key) and 128 (value); H
// heads,
//           B requests, T tokens of the step. BF16 where nothing else is said. kv_b [H * 256, 512], rows per head [128 keys
//           | 128 values]. Everything with a `stride` is in elements.
// Units:    lse: natural logarithm of the sum of exp(score).
// Memory:   nothing is allocated. What varies from step to step is read from device memory. A page table entry beyond the
// tokens of
//           its request is never read.
// Threads:  any; one call's workspace belongs to that call until it has run.
// Errors:   K3_CHECK on sizes, strides and alignment (16 bytes); CudaStatus of the launch.
// Source:   model.md 3.4, kernels.md 8. Against double on the same BF16 inputs: norm ratio of outputs 3e-3, of values with what
//           rounding cut off 5e-5; lse 1e-4 absolute.
//           Sums, softmax and parts of a split request are FP32; the weights of the second product are rounded to BF16.
#pragma once

#include "k3/ops/cuda/launch.h"
#include "k3/ops/mla/cuda/mla_args.h"

namespace k3::ops::cuda {

CudaStatus latent_append_cuda(const LatentAppend& args, Stream stream);
CudaStatus latent_gather_cuda(const LatentGather& args, Stream stream);
CudaStatus mla_absorb_cuda(const MlaAbsorb& args, Stream stream);
CudaStatus mla_values_cuda(const MlaValues& args, Stream stream);
// Of a configuration: mla_config.h.
int64_t mla_decode_workspace_bytes(const MlaDecodeConfig& config);
CudaStatus mla_decode_cuda(const MlaDecode& args, Stream stream);
// Where mla_fused_config says usable: latent_append, absorb, decode and values of one sequence, in one launch. Against them with
// the query rounded to BF16 as theirs is: 3e-3; ol is not rounded. A page's row of a token of this step is not read, but written.
int64_t mla_fused_workspace_bytes(const MlaFusedConfig& config);
CudaStatus mla_fused_cuda(const MlaFused& args, Stream stream);
CudaStatus mla_prefill_cuda(const MlaPrefill& args, Stream stream);

}  // namespace k3::ops::cuda
