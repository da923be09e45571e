#include "k3/ops/cpu/vec_math_avx512.h"
#include "k3/ops/mxfp4/mxfp4_kernels.h"

namespace k3::ops {

void mxfp4_groups_avx512(const uint8_t* packed, const uint8_t* scales, int64_t groups, float* out) noexcept {
  const __m512 codes = _mm512_setr_ps(0.0F, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6);
  // Lane 2j of the first output is even element j, lane 2j + 1 odd element j (index bit 4 picks the second source).
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  for (int64_t g = 0; g < groups; ++g) {
    const uint32_t s = scales[g];
    const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(s == 0 ? 0x400000U : s << 23)));
    const __m512 table = _mm512_mul_ps(codes, factor);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + g * 16)));
    const __m512 even = _mm512_permutexvar_ps(bytes, table);
    const __m512 odd = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table);
    _mm512_storeu_ps(out + g * 32, _mm512_permutex2var_ps(even, first, odd));
    _mm512_storeu_ps(out + g * 32 + 16, _mm512_permutex2var_ps(even, second, odd));
  }
}

}  // namespace k3::ops
