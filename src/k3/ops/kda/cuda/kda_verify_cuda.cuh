// Internal to ops/kda. Launchers of kda_verify_cuda_sm90.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "k3/ops/kda/cuda/kda_decode_args.h"

namespace k3::ops::cuda {

int kda_verify_launch(const KdaVerifyArgs& args, cudaStream_t stream);
int kda_commit_launch(const KdaCommitArgs& args, cudaStream_t stream);

}  // namespace k3::ops::cuda
