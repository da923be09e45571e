// Purpose:  what the current GPU can do: the rates that floors are computed with.
// Shapes:   none.
// Units:    10^9 bytes (read + written) and 10^12 FLOPs a second.
// Memory:   takes up to 4.5 GiB of the device for the call, less where less is free.
// Threads:  one at a time.
// Errors:   rates that could not be measured are 0.
// Source:   kernels.md 9: a large device copy, and a BF16 product of 8192^3 on random data.
#pragma once

#include "k3/ops/cuda/launch.h"

namespace k3::ops::cuda {

struct Ceilings {
  double copy_gbps = 0, gemm_tflops = 0;
};
Ceilings measure_ceilings(Stream stream);

// count BF16 values ~ N(0, scale) on the device, from a counter; for benches and random models.
CudaStatus fill_normal_bf16(void* out, int64_t count, uint64_t seed, float scale, Stream stream);
// count bytes, uniform in first .. first + values - 1; out aligned to 8.
CudaStatus fill_random_bytes(void* out, int64_t count, uint64_t seed, uint8_t first, int values, Stream stream);

}  // namespace k3::ops::cuda
