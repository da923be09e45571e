// int8_dots.h by pairs of bytes: |w| times x with the sign of w; 128 * 127 * 2 fits the 16-bit sums.
#include <immintrin.h>

#include <algorithm>

#include "k3/ops/cpu/vec_math.h"
#include "k3/ops/gemm/int8_decode.h"

namespace k3::ops {
namespace {

K3_VEC_INLINE __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

K3_VEC_INLINE __m256i doubled(__m256i codes) {
  const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kMxDoubled)));
  return _mm256_shuffle_epi8(table, codes);
}

// The four groups of a whole block: the 16-bit word i holds column i of group g in nibble g.
K3_VEC_INLINE void decode_block(const uint8_t* p, int8_t* out) {
  const __m256i a = load32(p), b = load32(p + 32), low = _mm256_set1_epi16(15);
  K3_UNROLL
  for (int g = 0; g < 4; ++g) {
    const __m256i x = _mm256_and_si256(_mm256_srli_epi16(a, 4 * g), low),
                  y = _mm256_and_si256(_mm256_srli_epi16(b, 4 * g), low);
    const __m256i codes = _mm256_permute4x64_epi64(_mm256_packus_epi16(x, y), 0xD8);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + 32 * g), doubled(codes));
  }
}

// Integers of a block of columns: in place, or decoded into `buffer`.
const int8_t* weights_of(const Int8Job& job, int64_t row, int64_t k0, int64_t columns, int8_t* buffer) {
  const uint8_t* p = int8_weight_row(job.w, row, k0);
  if (job.w.scheme == Scheme::i8) return reinterpret_cast<const int8_t*>(p);
  const int64_t whole = std::min(columns, job.w.cols / kMxBlock * kMxBlock - k0);
  int64_t k = 0;
  for (; k < whole; k += kMxBlock) decode_block(p + k / 2, buffer + k);
  if (k < columns) int8_decode(job.w, row, k0 + k, columns - k, buffer + k);
  return buffer;
}

float dot(const int8_t* w, const int8_t* q, const float* factors, const float* scales, int64_t groups) {
  __m256 sum = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    const __m256i a = load32(w + 32 * g), b = load32(q + 32 * g);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(fours), _mm256_set1_ps(factors[g] * scales[g]), sum);
  }
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

}  // namespace

void int8_avx2(const Int8Job& job) noexcept {
  alignas(32) int8_t buffer[kInt8Block];
  float factors[kInt8Block / kInt8DotGroup];
  for (int64_t row = job.row_begin; row < job.row_end; ++row) {
    for (int64_t k0 = 0; k0 < job.w.cols; k0 += kInt8Block) {
      const int64_t columns = std::min(kInt8Block, job.w.cols - k0), groups = columns / kInt8DotGroup;
      int8_factors(job.w, row, k0, columns, factors);
      const int8_t* w = weights_of(job, row, k0, columns, buffer);
      for (int64_t t = 0; t < job.tokens; ++t) {
        const float* scales = int8_scales(job.x[t], job.w.cols) + k0 / kInt8DotGroup;
        const float sum = dot(w, reinterpret_cast<const int8_t*>(job.x[t]) + k0, factors, scales, groups);
        float& y = job.y[t][row - job.y_origin];
        y = k0 == 0 ? sum : y + sum;
      }
    }
  }
}

}  // namespace k3::ops
