// Purpose:  sigmoid top-k routing with a selection bias, on the GPU.
// Shapes:   logits [T, E] f32, E <= 1024; bias [E] f32, may be null; ids [T, topk] i32, weights [T, topk] f32, topk <= 16.
// Units:    none.
// Memory:   ids and weights are overwritten, best expert first. With local_count > 0 the id of an expert outside
//           [local_first, local_first + local_count) is -1; its weight stays, the sum of a renormalisation is over all.
// Threads:  any.
// Errors:   K3_CHECK on shapes; CudaStatus of the launch. T = 0 is legal.
// Source:   router.h, whose rule and tolerances hold: ids equal unless two biased scores differ by less than 1e-6; weights
//           1e-6. Ties go to the lowest index, NaN ranks last. One warp a token.
#pragma once

#include <cstdint>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/router/cuda/router_cuda.cuh"

namespace k3::ops::cuda {

CudaStatus router_cuda(const RouterCuda& args, Stream stream);

}  // namespace k3::ops::cuda
