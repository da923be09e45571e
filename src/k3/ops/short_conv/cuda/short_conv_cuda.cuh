// Internal to ops/short_conv. The launcher of short_conv_cuda_sm90.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "k3/ops/short_conv/cuda/short_conv_args.h"

namespace k3::ops::cuda {

// run: tokens a thread passes through (8, 16 or 32).
int short_conv_launch(const ShortConvArgs& args, int run, cudaStream_t stream);

}  // namespace k3::ops::cuda
