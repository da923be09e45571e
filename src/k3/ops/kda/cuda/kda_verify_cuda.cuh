// Internal to ops/kda. Launchers of kda_verify_cuda_sm90.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "k3/ops/kda/cuda/kda_decode_args.h"

namespace k3::ops::cuda {

// split: rows of V over so many blocks of a cluster (1, 2, 4).
int kda_verify_launch(const KdaVerifyArgs& args, int split, int sm_count, cudaStream_t stream);
int kda_commit_launch(const KdaCommitArgs& args, int split, int sm_count, cudaStream_t stream);

}  // namespace k3::ops::cuda
