// Internal to ops/moe. Where an expert's packed weights lie; MXFP4 in registers: a packed word of 8 codes (moe_stream_pack.h) to
// BF16 pairs.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

__device__ __forceinline__ const uint8_t* expert_at(const MoePlaces& p, int expert) {
  const int slot = p.slot[expert];
  return slot >= 0 ? p.slots + slot * p.expert_bytes : p.host + expert * p.expert_bytes;
}

// Pairs of columns (0,1) (2,3) (4,5) (6,7) of the word, low half first, each value * 2^-126: the three magnitude bits lie at
// the top of the mantissa and the bottom of the exponent, where the code of 0.5 is a subnormal of the right value.
__device__ __forceinline__ void mxfp4_decode(uint32_t word, uint32_t (&out)[4]) {
  constexpr uint32_t kMask = 0x81C081C0U;
  out[0] = word & kMask;
  out[1] = (word << 3) & kMask;
  out[2] = (word << 6) & kMask;
  // Bits 13, 14 to 22, 23 by 9; 10 to 24 by 14; 11 to 31 by 20; the upper half's come out 16 higher, in the upper word. No
  // two of the twelve moved bits meet, so the product is a sum of shifts without carries.
  const uint64_t moved = static_cast<uint64_t>(word & 0x6C006C00U) * ((1U << 9) | (1U << 14) | (1U << 20));
  out[3] = (static_cast<uint32_t>(moved) & 0x81C00000U) | (static_cast<uint32_t>(moved >> 32) & 0x000081C0U);
}

// Two scale bytes (s' + 126), low half and high half of `pair` being the BF16 factors 2^(s' - 1) of rows g and g + 8.
// word: 4 scale bytes [q][half] of two groups; which: 0 or 1.
__device__ __forceinline__ uint32_t mxfp4_factors(uint32_t word, int which) {
  return __byte_perm(word, 0, which == 0 ? 0x4140 : 0x4342) << 7;
}

__device__ __forceinline__ uint32_t mxfp4_scaled(uint32_t pair, __nv_bfloat162 factor) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair), factor);
  return *reinterpret_cast<const uint32_t*>(&product);
}

}  // namespace k3::ops::cuda
