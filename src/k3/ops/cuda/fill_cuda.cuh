// Internal to ops/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace k3::ops::cuda {

int fill_normal_bf16_launch(void* out, int64_t count, uint64_t seed, float scale, cudaStream_t stream);
int fill_random_bytes_launch(void* out, int64_t count, uint64_t seed, uint8_t first, int values, cudaStream_t stream);

}  // namespace k3::ops::cuda
