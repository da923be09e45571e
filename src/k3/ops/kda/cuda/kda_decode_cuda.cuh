// Internal to ops/kda. Launchers of kda_decode_cuda_sm90.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "k3/ops/kda/cuda/kda_decode_args.h"
#include "k3/ops/kda/cuda/kda_decode_config.h"

namespace k3::ops::cuda {

int kda_decode_launch(const KdaDecodeArgs& args, const KdaDecodeConfig& config, cudaStream_t stream);

}  // namespace k3::ops::cuda
