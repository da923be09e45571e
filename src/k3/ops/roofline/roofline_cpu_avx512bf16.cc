#include <immintrin.h>

#include "k3/ops/roofline/roofline_kernel.h"

namespace k3::ops {

float spin_bf16_dot(int64_t rounds) {
  __m512 sums[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3F803F80));  // pairs of BF16 1.0
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], ones, ones);
  }
  __m512 sum = sums[0];
  for (int i = 1; i < kAccumulators; ++i) sum = _mm512_add_ps(sum, sums[i]);
  return _mm512_cvtss_f32(sum);
}

}  // namespace k3::ops
