#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/cuda/train_rows.h"
#include "k3/ops/situ_glu/cuda/situ_glu_slopes.cuh"

namespace k3::ops::cuda {
namespace {

__device__ __forceinline__ GluKindArgs kind_of(const GluTrain& a) { return {a.situ, a.beta, a.linear_beta}; }

// Eight numbers a step where all is aligned; one else.
__global__ void glu_train(const GluTrain a, int64_t vectors) {
  const GluKindArgs kind = kind_of(a);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x, first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < vectors; i += step) {
    float g[8], u[8];
    unpack8(static_cast<const uint4*>(a.gate)[i], g);
    unpack8(static_cast<const uint4*>(a.up)[i], u);
#pragma unroll
    for (int e = 0; e < 8; ++e) g[e] = glu_slopes(g[e], u[e], kind).value;
    static_cast<uint4*>(a.out)[i] = pack8(g);
  }
  for (int64_t i = 8 * vectors + first; i < a.count; i += step) {
    const float g = __bfloat162float(static_cast<const __nv_bfloat16*>(a.gate)[i]), u = __bfloat162float(static_cast<const __nv_bfloat16*>(a.up)[i]);
    static_cast<__nv_bfloat16*>(a.out)[i] = __float2bfloat16(glu_slopes(g, u, kind).value);
  }
}

__global__ void glu_vjp(const GluTrain a, int64_t vectors) {
  const GluKindArgs kind = kind_of(a);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x, first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < vectors; i += step) {
    float g[8], u[8], d[8];
    unpack8(static_cast<const uint4*>(a.gate)[i], g);
    unpack8(static_cast<const uint4*>(a.up)[i], u);
    unpack8(static_cast<const uint4*>(a.dout)[i], d);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const GluSlopes s = glu_slopes(g[e], u[e], kind);
      g[e] = d[e] * s.gate;
      u[e] = d[e] * s.up;
    }
    static_cast<uint4*>(a.dgate)[i] = pack8(g);
    static_cast<uint4*>(a.dup)[i] = pack8(u);
  }
  for (int64_t i = 8 * vectors + first; i < a.count; i += step) {
    const auto at = [i](const void* p) { return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]); };
    const GluSlopes s = glu_slopes(at(a.gate), at(a.up), kind);
    const float d = at(a.dout);
    static_cast<__nv_bfloat16*>(a.dgate)[i] = __float2bfloat16(d * s.gate);
    static_cast<__nv_bfloat16*>(a.dup)[i] = __float2bfloat16(d * s.up);
  }
}

int run(void (*kernel)(GluTrain, int64_t), const GluTrain& a, uint64_t places, void* stream) {
  const int64_t vectors = (places & 15) == 0 ? a.count / 8 : 0, work = vectors > 0 ? vectors : a.count;
  const int64_t blocks = (work + 255) / 256;
  return launch(kernel, {.grid = dim3(static_cast<unsigned>(blocks < 8192 ? (blocks > 0 ? blocks : 1) : 8192)), .block = dim3(256)},
                static_cast<cudaStream_t>(stream), a, vectors);
}

uint64_t place(const void* p) { return reinterpret_cast<uint64_t>(p); }

}  // namespace

int glu_train_launch(const GluTrain& a, void* stream) { return run(glu_train, a, place(a.gate) | place(a.up) | place(a.out), stream); }
int glu_vjp_launch(const GluTrain& a, void* stream) {
  return run(glu_vjp, a, place(a.gate) | place(a.up) | place(a.dout) | place(a.dgate) | place(a.dup), stream);
}

}  // namespace k3::ops::cuda
