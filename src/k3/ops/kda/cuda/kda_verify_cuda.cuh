// Internal to ops/kda. Launchers of kda_verify_cuda_sm90.cu.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "k3/ops/kda/cuda/kda_decode_args.h"

namespace k3::ops::cuda {

// states: a map of FP32 states in boxes of 32 by 128 numbers (as 64 by 128 of BF16), swizzled, for windows of 8; null: done without.
int kda_verify_launch(const KdaVerifyArgs& args, const CUtensorMap* states, cudaStream_t stream);
int kda_commit_launch(const KdaCommitArgs& args, cudaStream_t stream);

}  // namespace k3::ops::cuda
