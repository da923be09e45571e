// Internal to ops/kda. Tensor maps of a prefill's rows for the copy engine: boxes of 16 tokens x 64 channels, 128-byte
// swizzle.
#pragma once

#include <cuda.h>

#include "k3/ops/kda/cuda/kda_prefill_params.h"

namespace k3::ops::cuda {

struct PrefillMaps {
  CUtensorMap z, q, k, v;
};

// 0 or a cudaError_t. The driver's encoder is found at run time.
int kda_prefill_encode(const K3KdaPrefill& args, PrefillMaps& maps);

}  // namespace k3::ops::cuda
