#include <immintrin.h>

#include "k3/ops/roofline/roofline_kernel.h"

namespace k3::ops {

float spin_fp32_avx2(int64_t rounds) {
  __m256 sums[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 half = _mm256_set1_ps(0.5F);  // x / 2 + 1/2 tends to 1: neither overflow nor denormals
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) sums[i] = _mm256_fmadd_ps(sums[i], half, half);
  }
  __m256 sum = sums[0];
  for (int i = 1; i < kAccumulators; ++i) sum = _mm256_add_ps(sum, sums[i]);
  return _mm256_cvtss_f32(sum);
}

uint64_t read_avx2(const std::byte* data, int64_t bytes) {
  __m256i mix[8];
  for (__m256i& m : mix) m = _mm256_setzero_si256();
  for (const std::byte* const end = data + bytes; data != end; data += 256) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      mix[i] = _mm256_xor_si256(mix[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data) + i));
    }
    // A prefetch of an address behind the buffer does nothing.
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) _mm_prefetch(reinterpret_cast<const char*>(data) + 2048 + 64 * i, _MM_HINT_T0);
  }
  for (int i = 1; i < 8; ++i) mix[0] = _mm256_xor_si256(mix[0], mix[i]);
  return static_cast<uint64_t>(_mm256_extract_epi64(mix[0], 0));
}

}  // namespace k3::ops
