// Sums and copies of gradients, FP32 to BF16, the output gate of MLA.
#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/cuda/train_rows.h"

namespace k3::ops::cuda {
namespace {

template <class T>
__global__ void accumulate_one(const T* x, T* y, int64_t count, bool add) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    y[i] = add ? static_cast<T>(static_cast<float>(y[i]) + static_cast<float>(x[i])) : x[i];
  }
}

template <bool kF32>
__global__ void accumulate_many(const uint4* x, uint4* y, int64_t count, bool add) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    uint4 v = x[i];
    if (add) {
      const uint4 old = y[i];
      if constexpr (kF32) {
        const auto plus = [](uint32_t p, uint32_t q) { return __float_as_uint(__uint_as_float(p) + __uint_as_float(q)); };
        v = {plus(v.x, old.x), plus(v.y, old.y), plus(v.z, old.z), plus(v.w, old.w)};
      } else {
        v = add8(v, old);
      }
    }
    y[i] = v;
  }
}

__global__ void narrow(const float* x, __nv_bfloat16* y, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    y[i] = __float2bfloat16(x[i]);
  }
}

__global__ void narrow_many(const float4* x, uint4* y, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const float4 a = x[2 * i], b = x[2 * i + 1];
    y[i] = {pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w)};
  }
}

__global__ void gate_train(const float* o, const __nv_bfloat16* gate, __nv_bfloat16* y, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const float factor = gate != nullptr ? 1 / (1 + expf(-__bfloat162float(gate[i]))) : 1.0F;
    y[i] = __float2bfloat16(o[i] * factor);
  }
}

dim3 grid_of(int64_t count) {
  const int64_t blocks = (count + 255) / 256;
  return dim3(static_cast<unsigned>(blocks < 4096 ? (blocks > 0 ? blocks : 1) : 4096));
}

}  // namespace

int accumulate_launch(const void* x, void* y, int64_t count, bool f32, bool add, void* stream) {
  auto* const on = static_cast<cudaStream_t>(stream);
  const int64_t per = f32 ? 4 : 8;
  if (((reinterpret_cast<uint64_t>(x) | reinterpret_cast<uint64_t>(y)) & 15) == 0 && count % per == 0) {
    const LaunchOptions options{.grid = grid_of(count / per), .block = dim3(256)};
    const auto* const from = static_cast<const uint4*>(x);
    auto* const to = static_cast<uint4*>(y);
    return f32 ? launch(accumulate_many<true>, options, on, from, to, count / per, add)
               : launch(accumulate_many<false>, options, on, from, to, count / per, add);
  }
  const LaunchOptions options{.grid = grid_of(count), .block = dim3(256)};
  if (f32) return launch(accumulate_one<float>, options, on, static_cast<const float*>(x), static_cast<float*>(y), count, add);
  return launch(accumulate_one<__nv_bfloat16>, options, on, static_cast<const __nv_bfloat16*>(x), static_cast<__nv_bfloat16*>(y), count, add);
}

int narrow_launch(const float* x, void* y, int64_t count, void* stream) {
  auto* const on = static_cast<cudaStream_t>(stream);
  if (((reinterpret_cast<uint64_t>(x) | reinterpret_cast<uint64_t>(y)) & 15) == 0 && count % 8 == 0) {
    return launch(narrow_many, {.grid = grid_of(count / 8), .block = dim3(256)}, on, reinterpret_cast<const float4*>(x), static_cast<uint4*>(y), count / 8);
  }
  return launch(narrow, {.grid = grid_of(count), .block = dim3(256)}, on, x, static_cast<__nv_bfloat16*>(y), count);
}

int gate_train_launch(const float* o, const void* gate, void* y, int64_t count, void* stream) {
  return launch(gate_train, {.grid = grid_of(count), .block = dim3(256)}, static_cast<cudaStream_t>(stream), o, static_cast<const __nv_bfloat16*>(gate),
                static_cast<__nv_bfloat16*>(y), count);
}

}  // namespace k3::ops::cuda
