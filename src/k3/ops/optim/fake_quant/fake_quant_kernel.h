// Internal to ops/optim. MXFP8 of whole groups, by instruction set: one loop, compiled three times (V only tells the copies apart).
#pragma once

#include <cstdint>

#include "k3/ops/cpu/vec_math.h"

namespace k3::ops {

using Mxfp8Fn = void (*)(const float* in, int64_t groups, float* out);
void mxfp8_groups_portable(const float* in, int64_t groups, float* out) noexcept;
void mxfp8_groups_avx2(const float* in, int64_t groups, float* out) noexcept;
void mxfp8_groups_avx512(const float* in, int64_t groups, float* out) noexcept;

// Scale byte of the smallest e with amax <= 448 * 2^e = 1.75 * 2^(e + 8), from the bits of amax (1.m * 2^(x - 127)); at least 0.
K3_VEC_INLINE uint32_t mxfp8_scale_byte(uint32_t amax) {
  const uint32_t x = amax >> 23, more = (amax & 0x7FFFFF) > 0x600000 ? 1 : 0;
  return x + more <= 8 ? 0 : x + more - 8;
}

// |y| <= 448 rounded to E4M3, to nearest even: three bits of fraction from 2^-6 on, below it multiples of 2^-9.
K3_VEC_INLINE uint32_t e4m3_round(uint32_t magnitude) {
  const uint32_t normal = (magnitude + 0x7FFFF + (magnitude >> 20 & 1)) & ~0xFFFFFU;
  // Adding 1.5 * 2^14, whose last bit is 2^-9, leaves no room for more.
  const float small = (__builtin_bit_cast(float, magnitude) + 0x1.8p14F) - 0x1.8p14F;
  return magnitude < 0x3C800000 ? __builtin_bit_cast(uint32_t, small) : normal;
}

template <class V>
K3_VEC_INLINE void mxfp8_groups(const float* in, int64_t groups, float* out) {
  for (int64_t g = 0; g < groups; ++g, in += 32, out += 32) {
    uint32_t bits[32], amax = 0;
    __builtin_memcpy(bits, in, sizeof(bits));
    for (int i = 0; i < 32; ++i) {
      const uint32_t magnitude = bits[i] & 0x7FFFFFFF;
      amax = amax > magnitude ? amax : magnitude;
    }
    const uint32_t s = mxfp8_scale_byte(amax);
    const float up = __builtin_bit_cast(float, (254 - s) << 23);                      // 2^-e
    const float down = __builtin_bit_cast(float, s == 0 ? 0x400000U : s << 23);        // 2^e; byte 0 is the subnormal 2^-127
    const uint32_t bad = amax >= 0x7F800000 ? 0x7FC00000U : 0;
    for (int i = 0; i < 32; ++i) {
      const float y = __builtin_bit_cast(float, bits[i]) * up;
      const auto b = __builtin_bit_cast(uint32_t, y);
      const float q = __builtin_bit_cast(float, e4m3_round(b & 0x7FFFFFFF) | (b & 0x80000000U)) * down;
      bits[i] = __builtin_bit_cast(uint32_t, q) | bad;
    }
    __builtin_memcpy(out, bits, sizeof(bits));
  }
}

}  // namespace k3::ops
