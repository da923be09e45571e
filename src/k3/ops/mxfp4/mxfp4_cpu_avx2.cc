#include "k3/ops/cpu/vec_math_avx2.h"
#include "k3/ops/mxfp4/mxfp4_kernels.h"

namespace k3::ops {
namespace {

K3_VEC_INLINE __m256 value(__m256i code, __m256 table) {
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(code, 28), _mm256_set1_epi32(INT32_MIN));
  return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, code), _mm256_castsi256_ps(sign));
}

}  // namespace

void mxfp4_groups_avx2(const uint8_t* packed, const uint8_t* scales, int64_t groups, float* out) noexcept {
  for (int64_t g = 0; g < groups; ++g) {
    const uint32_t s = scales[g];
    const __m256 factor = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(s == 0 ? 0x400000U : s << 23)));
    const __m256 table = _mm256_mul_ps(_mm256_setr_ps(0.0F, 0.5F, 1, 1.5F, 2, 3, 4, 6), factor);
    for (int half = 0; half < 2; ++half) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed + g * 16 + half * 8));
      const __m256i low = _mm256_cvtepu8_epi32(bytes);
      const __m256 even = value(low, table), odd = value(_mm256_srli_epi32(low, 4), table);
      const __m256 a = _mm256_unpacklo_ps(even, odd), b = _mm256_unpackhi_ps(even, odd);
      _mm256_storeu_ps(out + g * 32 + half * 16, _mm256_permute2f128_ps(a, b, 0x20));
      _mm256_storeu_ps(out + g * 32 + half * 16 + 8, _mm256_permute2f128_ps(a, b, 0x31));
    }
  }
}

}  // namespace k3::ops
