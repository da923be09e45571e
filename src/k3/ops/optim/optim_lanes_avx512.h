// Internal to ops/optim. optim_lanes.h for AVX-512. Only for sources named _cpu_avx512.cc.
#pragma once

#include "k3/ops/cpu/lanes_avx512.h"

namespace k3::ops {

struct OptimLanes512 : Lanes512 {
  static constexpr int kTileRows = 8, kTileVectors = 3;  // 24 sums, 3 vectors; factors are broadcast from memory
  static K3_VEC_INLINE F sqrt(F x) { return _mm512_sqrt_ps(x); }
  static K3_VEC_INLINE __m256i words(F x) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(round_bf16(x)), 16)); }
  static K3_VEC_INLINE void store_bf16(uint16_t* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words(x)); }
  static K3_VEC_INLINE void store_bf16(uint16_t* p, F x, int64_t n) {
    _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1U << n) - 1), words(x));
  }
};

}  // namespace k3::ops
