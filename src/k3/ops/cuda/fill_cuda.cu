#include <cuda_bf16.h>

#include "k3/ops/cuda/fill_cuda.cuh"
#include "k3/ops/cuda/launch.cuh"

namespace k3::ops::cuda {
namespace {

__device__ uint64_t mix(uint64_t x) {  // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Two values from one counter by Box and Muller.
__global__ void fill(__nv_bfloat16* out, int64_t count, uint64_t seed, float scale) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; 2 * i < count; i += stride) {
    const uint64_t bits = mix(seed * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(i) + 1);
    const float u = (static_cast<float>(bits >> 40) + 0.5F) * 0x1p-24F, v = static_cast<float>(bits & 0xFFFFFF) * 0x1p-24F;
    const float radius = scale * sqrtf(-2 * logf(u));
    out[2 * i] = __float2bfloat16(radius * cospif(2 * v));
    if (2 * i + 1 < count) out[2 * i + 1] = __float2bfloat16(radius * sinpif(2 * v));
  }
}

// Eight bytes from one counter.
__global__ void fill_bytes(uint8_t* out, int64_t count, uint64_t seed, uint32_t first, uint32_t values) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; 8 * i < count; i += stride) {
    const uint64_t bits = mix(seed * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(i) + 1);
    uint64_t bytes = 0;
    for (int b = 0; b < 8; ++b) {
      const uint32_t draw = static_cast<uint32_t>(bits >> (8 * b)) & 0xFF;
      bytes |= static_cast<uint64_t>(first + draw * values / 256) << (8 * b);
    }
    if (8 * i + 8 <= count) {
      reinterpret_cast<uint64_t*>(out)[i] = bytes;
    } else {
      for (int64_t b = 8 * i; b < count; ++b) out[b] = static_cast<uint8_t>(bytes >> (8 * (b - 8 * i)));
    }
  }
}

}  // namespace

int fill_random_bytes_launch(void* out, int64_t count, uint64_t seed, uint8_t first, int values, cudaStream_t stream) {
  if (count == 0) return 0;
  fill_bytes<<<1024, 256, 0, stream>>>(static_cast<uint8_t*>(out), count, seed, first, static_cast<uint32_t>(values));
  return launch_code();
}

int fill_normal_bf16_launch(void* out, int64_t count, uint64_t seed, float scale, cudaStream_t stream) {
  if (count == 0) return 0;
  fill<<<1024, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(out), count, seed, scale);
  return launch_code();
}

}  // namespace k3::ops::cuda
