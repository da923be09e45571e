// Purpose:  random weights made on a GPU, whole or as a rank's share (Config::local_experts), for benches.
// Shapes:   those of gpu_weights.h.
// Units:    bytes.
// Memory:   the WeightSet owns device memory; scratch for one expert while filling.
// Threads:  one thread calls; small parameters are drawn by the pool.
// Errors:   those of check_gpu_config; unsupported: an 8-bit trunk; exhausted with the arithmetic, before anything is taken.
// Source:   init.h: the same distributions, other numbers, as the device has a generator of its own. MXFP4 codes are uniform, with
//           scales that give them about the deviation of initializer_range. AttnRes queries are zero (an even mix), the router's
//           bias is zero.
#pragma once

#include "k3/model/weights.h"
#include "k3/tensor/device.h"

namespace k3 {

Result<WeightSet> random_weights_on(Device device, const Config& config, uint64_t seed, ThreadPool& pool, const LoadProgress& progress);

}  // namespace k3
