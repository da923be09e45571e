// MXFP4 and MXFP8 there and back: eight numbers a thread, four threads a group of 32. The integer arithmetic is that of mxfp4.cc and
// fake_quant_kernel.h.
#include <cuda_bf16.h>

#include "k3/ops/cuda/launch.cuh"
#include "k3/ops/cuda/reduce.cuh"
#include "k3/ops/optim/cuda/optim_args.h"

namespace k3::ops::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float power(uint32_t s) { return __uint_as_float(s == 0 ? 0x400000U : s << 23); }  // 2^(s - 127)

struct Mxfp4 {
  float factor;
  bool bad;
  __device__ explicit Mxfp4(uint32_t amax) {
    const uint32_t x = amax >> 23, more = (amax & 0x7FFFFF) > 0x400000 ? 1 : 0;
    const uint32_t s = x + more <= 2 ? 0 : x + more - 2;
    bad = amax >= 0x7F800000 || s > 252;
    factor = power(s);
  }
  __device__ float operator()(float v) const {
    // Midpoints between codes, exact after scaling; floats of one sign order like their bits.
    constexpr float kCuts[7] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
    constexpr float kValues[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    const uint32_t magnitude = __float_as_uint(v) & 0x7FFFFFFFU;
    float code = kValues[0];
#pragma unroll
    for (int c = 0; c < 7; ++c) code = magnitude > __float_as_uint(__fmul_rn(kCuts[c], factor)) ? kValues[c + 1] : code;
    const float q = __fmul_rn(code, factor);
    return v < 0 ? -q : q;  // -0 is not below zero
  }
};

struct Mxfp8 {
  float up, down;
  bool bad;
  __device__ explicit Mxfp8(uint32_t amax) {
    const uint32_t x = amax >> 23, more = (amax & 0x7FFFFF) > 0x600000 ? 1 : 0;
    const uint32_t s = x + more <= 8 ? 0 : x + more - 8;
    bad = amax >= 0x7F800000;
    up = __uint_as_float((254 - s) << 23);
    down = power(s);
  }
  __device__ float operator()(float v) const {
    const uint32_t bits = __float_as_uint(__fmul_rn(v, up)), magnitude = bits & 0x7FFFFFFFU;
    const uint32_t normal = (magnitude + 0x7FFFFU + (magnitude >> 20 & 1)) & ~0xFFFFFU;
    const float small = __fsub_rn(__fadd_rn(__uint_as_float(magnitude), 0x1.8p14F), 0x1.8p14F);
    const uint32_t q = magnitude < 0x3C800000U ? __float_as_uint(small) : normal;
    return __fmul_rn(__uint_as_float(q | (bits & 0x80000000U)), down);
  }
};

template <class Format, bool kInF32, bool kOutF32>
__global__ void __launch_bounds__(kThreads) fake_quant_kernel(const __grid_constant__ FakeQuantLaunch a) {
  const int64_t vectors = a.cols / 8, i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool inside = i < a.rows * vectors;
  const int64_t row = inside ? i / vectors : 0, col = inside ? i % vectors * 8 : 0;
  float v[8];
  if constexpr (kInF32) {
    const auto* p = reinterpret_cast<const float4*>(static_cast<const float*>(a.in) + row * a.in_stride + col);
    const float4 x = p[0], y = p[1];
    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w, v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
  } else {
    unpack8(*reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.in) + row * a.in_stride + col), v);
  }
  uint32_t amax = 0;
#pragma unroll
  for (float x : v) amax = max(amax, __float_as_uint(x) & 0x7FFFFFFFU);
  amax = max(amax, __shfl_xor_sync(0xFFFFFFFFU, amax, 1));
  amax = max(amax, __shfl_xor_sync(0xFFFFFFFFU, amax, 2));
  const Format format(amax);
#pragma unroll
  for (float& x : v) x = format.bad ? __uint_as_float(0x7FC00000U) : format(x);
  if (!inside) return;
  if constexpr (kOutF32) {
    auto* p = reinterpret_cast<float4*>(static_cast<float*>(a.out) + row * a.out_stride + col);
    p[0] = {v[0], v[1], v[2], v[3]};
    p[1] = {v[4], v[5], v[6], v[7]};
  } else {
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(a.out) + row * a.out_stride + col) = pack8(v);
  }
}

template <class Format>
int run(const FakeQuantLaunch& a, void* s) {
  const auto stream = static_cast<cudaStream_t>(s);
  const auto blocks = static_cast<unsigned>((a.rows * (a.cols / 8) + kThreads - 1) / kThreads);
  if (a.in_f32) {
    if (a.out_f32) {
      fake_quant_kernel<Format, true, true><<<blocks, kThreads, 0, stream>>>(a);
    } else {
      fake_quant_kernel<Format, true, false><<<blocks, kThreads, 0, stream>>>(a);
    }
  } else if (a.out_f32) {
    fake_quant_kernel<Format, false, true><<<blocks, kThreads, 0, stream>>>(a);
  } else {
    fake_quant_kernel<Format, false, false><<<blocks, kThreads, 0, stream>>>(a);
  }
  return launch_code();
}

}  // namespace

int mxfp4_fake_quant_launch(const FakeQuantLaunch& a, void* stream) { return run<Mxfp4>(a, stream); }
int mxfp8_fake_quant_launch(const FakeQuantLaunch& a, void* stream) { return run<Mxfp8>(a, stream); }

}  // namespace k3::ops::cuda
