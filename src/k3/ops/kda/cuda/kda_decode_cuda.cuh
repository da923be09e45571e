// Internal to ops/kda. Launchers of kda_decode_cuda_sm90.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "k3/ops/kda/cuda/kda_decode_args.h"

namespace k3::ops::cuda {

// Rows of V over `split` blocks of a cluster, `warps` a block. bulk: the state passes through shared memory by bulk copies.
struct KdaDecodeConfig {
  int split = 1, warps = 8;
  bool bulk = false;
};

int kda_decode_launch(const KdaDecodeArgs& args, const KdaDecodeConfig& config, cudaStream_t stream);

}  // namespace k3::ops::cuda
