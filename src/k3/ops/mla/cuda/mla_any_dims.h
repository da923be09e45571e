// Purpose:  multi-head latent attention on a GPU for head sizes and ranks that the fast kernels do not have: to be right rather than
//           fast.
// Shapes:   mla_any_dims_args.h; any heads, nope, rope, value and rank (rank + rope up to 16,384), any number of tokens a request. BF16.
// Units:    strides in elements; scale (nope + rope)^-0.5.
// Memory:   nothing is allocated; page table entries beyond the tokens of a request are not read.
// Threads:  any; may be captured in a graph.
// Errors:   CudaStatus of the launch; K3_CHECK on sizes.
// Source:   model.md 3.4, kernels.md 8: absorbed, FP32 throughout, softmax over tiles of 128 cached tokens. Tolerance against double on the
//           same BF16 inputs: norm ratio 3e-3 (its BF16 output is 1.7e-3). The order of sums depends on a token's position alone.
#pragma once

#include "k3/ops/cuda/launch.h"
#include "k3/ops/mla/cuda/mla_any_dims_args.h"

namespace k3::ops::cuda {

CudaStatus latent_append_any_cuda(const LatentAppendAny& args, Stream stream);
CudaStatus mla_any_dims_cuda(const MlaAny& args, Stream stream);

}  // namespace k3::ops::cuda
