#include <immintrin.h>

#include "k3/ops/roofline/roofline_kernel.h"

namespace k3::ops {

float spin_fp32_avx512(int64_t rounds) {
  __m512 sums[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 half = _mm512_set1_ps(0.5F);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) sums[i] = _mm512_fmadd_ps(sums[i], half, half);
  }
  __m512 sum = sums[0];
  for (int i = 1; i < kAccumulators; ++i) sum = _mm512_add_ps(sum, sums[i]);
  return _mm512_cvtss_f32(sum);
}

uint64_t read_avx512(const std::byte* data, int64_t bytes) {
  __m512i mix[8];
  for (__m512i& m : mix) m = _mm512_setzero_si512();
  for (const std::byte* const end = data + bytes; data != end; data += 512) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      mix[i] = _mm512_xor_si512(mix[i], _mm512_load_si512(data + 64 * i));
      _mm_prefetch(reinterpret_cast<const char*>(data) + 2048 + 64 * i, _MM_HINT_T0);
    }
  }
  for (int i = 1; i < 8; ++i) mix[0] = _mm512_xor_si512(mix[0], mix[i]);
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm512_castsi512_si128(mix[0])));
}

}  // namespace k3::ops
