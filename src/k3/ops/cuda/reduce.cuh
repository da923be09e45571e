// Internal to ops/cuda. Sums over a warp of several values at once, vectors of eight BF16.
#pragma once

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

// One step of warp_sums: of x[0 .. 2 kHalf) (zeros from kCount on) half is sent away and half kept.
template <int kHalf, int kCount, int kSize>
__device__ __forceinline__ void fold_lanes(float (&x)[kSize]) {
  if constexpr (kHalf > 0) {
    const bool upper = (threadIdx.x & kHalf) != 0;
#pragma unroll
    for (int i = 0; i < kHalf && i < kCount; ++i) {
      const float other = i + kHalf < kCount ? x[i + kHalf < kSize ? i + kHalf : 0] : 0;
      x[i] = (upper ? other : x[i]) + __shfl_xor_sync(0xFFFFFFFFU, upper ? x[i] : other, kHalf);
    }
    fold_lanes<kHalf / 2, (kCount < kHalf ? kCount : kHalf)>(x);
  }
}
// Lane i < kCount gets the warp's sum of v[i] (others: zeros or copies); v is overwritten. About kCount + 5 shuffles; sums
// one by one would be 5 kCount.
template <int kCount>
__device__ __forceinline__ float warp_sums(float (&v)[kCount]) {
  static_assert(kCount <= 32);
  constexpr int kHalf = kCount > 16 ? 16 : kCount > 8 ? 8 : kCount > 4 ? 4 : kCount > 2 ? 2 : kCount > 1 ? 1 : 0;
  fold_lanes<kHalf, kCount>(v);
  float sum = v[0];
  constexpr int kWidth = kHalf > 0 ? 2 * kHalf : 1;
#pragma unroll
  for (int i = 16; i >= kWidth; i /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, i);
  return sum;
}

__device__ __forceinline__ void unpack8(const uint4& in, float (&out)[8]) {
  out[0] = low_bf16(in.x), out[1] = high_bf16(in.x), out[2] = low_bf16(in.y), out[3] = high_bf16(in.y);
  out[4] = low_bf16(in.z), out[5] = high_bf16(in.z), out[6] = low_bf16(in.w), out[7] = high_bf16(in.w);
}
__device__ __forceinline__ uint4 pack8(const float (&in)[8]) {
  return {pack_bf16(in[0], in[1]), pack_bf16(in[2], in[3]), pack_bf16(in[4], in[5]), pack_bf16(in[6], in[7])};
}
// One rounding to BF16 a number: what an add kernel of its own stores.
__device__ __forceinline__ uint4 add8(const uint4& a, const uint4& b) {
  float x[8], y[8];
  unpack8(a, x);
  unpack8(b, y);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] += y[i];
  return pack8(x);
}

// A sum kept in two rows of BF16: `high` is the sum rounded, `low` what that cut off, rounded in turn; together 16 bits.
__device__ __forceinline__ void unpack_split8(const uint4& high, const uint4& low, float (&out)[8]) {
  float rest[8];
  unpack8(high, out);
  unpack8(low, rest);
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] += rest[i];
}
// The sum and delta. keep: else low becomes zero, and high what add8 makes of it.
__device__ __forceinline__ void add_split8(uint4& high, uint4& low, const uint4& delta, bool keep) {
  float x[8], y[8];
  unpack_split8(high, low, x);
  unpack8(delta, y);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] += y[i];
  high = pack8(x);
  unpack8(high, y);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] -= y[i];
  low = keep ? pack8(x) : uint4{};
}

// First statement of a kernel that may be launched as a dependent one (programmatic dependent launch).
__device__ __forceinline__ void dependent_begin() {
#if __CUDA_ARCH__ >= 900
  pdl_wait();
  pdl_release();
#endif
}

}  // namespace k3::ops::cuda
