// Internal to ops/kda. What the decode and verify kernels share: convolution of four channels a lane, gates, rows of a state
// in registers.
#pragma once

#include "k3/ops/cuda/ptx.cuh"
#include "k3/ops/kda/cuda/kda_decode_args.h"

namespace k3::ops::cuda {

constexpr int kDim = 128;
constexpr float kQueryScale = 0.08838834764831845F;  // 128^-0.5
constexpr float kNormEps = 1e-6F;                    // added to the sum of squares

__device__ __forceinline__ void load4(const __nv_bfloat16* from, float (&x)[4]) {
  const uint2 raw = *reinterpret_cast<const uint2*>(from);
  x[0] = low_bf16(raw.x), x[1] = high_bf16(raw.x), x[2] = low_bf16(raw.y), x[3] = high_bf16(raw.y);
}
__device__ __forceinline__ void load4(const float* from, float (&x)[4]) {
  const float4 raw = *reinterpret_cast<const float4*>(from);
  x[0] = raw.x, x[1] = raw.y, x[2] = raw.z, x[3] = raw.w;
}
__device__ __forceinline__ void store4(__nv_bfloat16* to, const float (&x)[4]) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
}
__device__ __forceinline__ void store4(float* to, const float (&x)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ float load_bf16(const void* from, int64_t i) {
  return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]);
}
// Elements i .. i + 3 of a conv state.
__device__ __forceinline__ void load_conv(const KdaSlots& s, int64_t i, float (&x)[4]) {
  if (s.conv_bf16 != 0) {
    load4(static_cast<const __nv_bfloat16*>(s.conv) + i, x);
  } else {
    load4(static_cast<const float*>(s.conv) + i, x);
  }
}
__device__ __forceinline__ void store_conv(const KdaSlots& s, int64_t i, const float (&x)[4]) {
  if (s.conv_bf16 != 0) {
    store4(static_cast<__nv_bfloat16*>(s.conv) + i, x);
  } else {
    store4(static_cast<float*>(s.conv) + i, x);
  }
}

constexpr float kLog2e = 1.4426950408889634F;
__device__ __forceinline__ float sigmoid(float x) { return rcp_approx(1.0F + exp2_approx(-kLog2e * x)); }

// The factor e^g of a token; `rate` is exp(a_log). Exact functions: its error stays in the state.
__device__ __forceinline__ float decay_factor(float x, float rate, float lower_bound) {
  if (lower_bound != 0) return expf(lower_bound * rcp_approx(1.0F + expf(-rate * x)));
  return expf(-rate * (fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x)))));
}

// The same, for windows: relative error below 1e-6.
__device__ __forceinline__ float decay_factor_approx(float x, float rate, float lower_bound) {
  if (lower_bound != 0) return exp2_approx(kLog2e * lower_bound * sigmoid(rate * x));
  return exp2_approx(-rate * (kLog2e * fmaxf(x, 0.0F) + __log2f(1.0F + exp2_approx(-kLog2e * fabsf(x)))));
}

// silu of the convolution; taps of channel i: oldest first.
__device__ __forceinline__ float conv_silu(float4 taps, float x0, float x1, float x2, float x3) {
  const float y = fmaf(taps.w, x3, fmaf(taps.z, x2, fmaf(taps.y, x1, taps.x * x0)));
  return y * sigmoid(y);
}

// scale / the norm of a vector of which each lane of a warp holds four.
__device__ __forceinline__ float norm_scale(const float (&x)[4], float scale) {
  return scale * rsqrtf(warp_sum(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]) + kNormEps);
}

}  // namespace k3::ops::cuda
