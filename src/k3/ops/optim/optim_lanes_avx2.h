// Internal to ops/optim. optim_lanes.h for AVX2. Only for sources named _cpu_avx2.cc.
#pragma once

#include "k3/ops/cpu/lanes_avx2.h"

namespace k3::ops {

struct OptimLanes256 : Lanes256 {
  static constexpr int kTileRows = 4, kTileVectors = 3;  // 12 sums, 3 vectors and a factor in 16 registers
  static K3_VEC_INLINE F sqrt(F x) { return _mm256_sqrt_ps(x); }
  static K3_VEC_INLINE void store_bf16(uint16_t* p, F x) {
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(round_bf16(x)), 16);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), words);
  }
  static K3_VEC_INLINE void store_bf16(uint16_t* p, F x, int64_t n) {
    uint16_t words[kWidth];
    store_bf16(words, x);
    for (int64_t i = 0; i < n; ++i) p[i] = words[i];
  }
};

}  // namespace k3::ops
