// AVX-512 decoders and entry points of rows.h.
#include "k3/ops/cpu/shuffle_avx512.h"
#include "k3/ops/cpu/vec_math_avx512.h"
#include "k3/ops/gemm/rows_kernel.h"
#include "k3/ops/int8/int8.h"
#include "k3/ops/mxfp4/mxfp4.h"

namespace k3::ops {
namespace {

struct RowVec512 : Vec512 {
  using Q = __m128;
  static constexpr int kTileTokens = 6;
  static constexpr int64_t kBlock = kBlockCols;

  static K3_VEC_INLINE Q load4(const float* p) { return _mm_loadu_ps(p); }
  static K3_VEC_INLINE void store4(float* p, Q x) { _mm_storeu_ps(p, x); }
  static K3_VEC_INLINE Q add4(Q a, Q b) { return _mm_add_ps(a, b); }
  static K3_VEC_INLINE Q sum4(F a, F b, F c, F d) { return sums_of_four(a, b, c, d); }

  struct Bf16 {
    using Element = uint16_t;
    static K3_VEC_INLINE F wide(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
    static K3_VEC_INLINE F widen(const uint16_t* p) { return wide(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
    static K3_VEC_INLINE F widen(const uint16_t* p, int64_t n) { return wide(_mm256_maskz_loadu_epi16(mask(n), p)); }
  };
  struct F16 {
    using Element = uint16_t;
    static K3_VEC_INLINE F widen(const uint16_t* p) {
      return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static K3_VEC_INLINE F widen(const uint16_t* p, int64_t n) {
      return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(n), p));
    }
  };

  // A step is a group of 32: even elements (low nibbles), then odd ones. The table of the 16 codes is scaled by the
  // group's factor, so a code costs one permute and the weight is exact.
  struct Mx {
    static constexpr int kVectors = 2;
    static constexpr bool kDense = false;
    const uint8_t* row[kTileRows];
    int64_t whole;  // columns of whole blocks from k0 on
    alignas(64) float factor[kTileRows][kBlockCols / 32];

    K3_VEC_INLINE void begin(const RowsJob& job, int64_t first, int64_t k0, int64_t columns) {
      const int64_t groups = columns / 32;
      whole = job.w.cols / kMxBlock * kMxBlock - k0;
      K3_UNROLL
      for (int r = 0; r < kTileRows; ++r) {
        const int64_t o = clamp_row(job, first + r);
        row[r] = static_cast<const uint8_t*>(job.w.data) + o * (job.w.cols / 2) + k0 / 2;
        const uint8_t* scales = job.w.scales + o * (job.w.cols / 32) + k0 / 32;
        for (int64_t g = 0; g < groups; g += 16) {
          const __mmask16 m = groups - g >= 16 ? static_cast<__mmask16>(0xFFFF) : mask(groups - g);
          const __m512i s = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(m, scales + g)), 23);
          // Scale byte 0 is 2^-127, a subnormal: mantissa 0x400000.
          _mm512_store_si512(factor[r] + g, _mm512_max_epu32(s, _mm512_set1_epi32(0x400000)));
        }
      }
    }
    K3_VEC_INLINE void prefetch(const RowsJob& job, int r, int64_t k) const { prefetch_ahead(row[r] + k / 2, job); }
    K3_VEC_INLINE void load(int r, int64_t k, F* w) const {
      const F codes = _mm512_setr_ps(0.0F, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6);
      const F table = _mm512_mul_ps(codes, set(factor[r][k / 32]));
      // The permute looks at the low four bits of each index, so the low nibble needs no mask.
      if (k < whole) {  // a dword holds an even word and an odd one
        const __m512i words = _mm512_loadu_si512(row[r] + k / kMxBlock * (kMxBlock / 2));
        const __m512i even = _mm512_srl_epi32(words, _mm_cvtsi64_si128(k % kMxBlock / 8));
        w[0] = _mm512_permutexvar_ps(even, table);
        w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(even, 16), table);
        return;
      }
      const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row[r] + k / 2)));
      w[0] = _mm512_permutexvar_ps(bytes, table);
      w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table);
    }
  };

  // A step is a group of 32.
  struct I8 {
    static constexpr int kVectors = 2;
    static constexpr bool kDense = false;
    const int8_t* row[kTileRows];
    alignas(64) float factor[kTileRows][kBlockCols / kInt8Group];

    K3_VEC_INLINE void begin(const RowsJob& job, int64_t first, int64_t k0, int64_t columns) {
      const int64_t groups = columns / kInt8Group;
      K3_UNROLL
      for (int r = 0; r < kTileRows; ++r) {
        const int64_t at = clamp_row(job, first + r) * job.w.cols + k0;
        row[r] = static_cast<const int8_t*>(job.w.data) + at;
        const uint8_t* scales = job.w.scales + at / kInt8Group;
        for (int64_t g = 0; g < groups; g += 16) {
          const __mmask16 m = groups - g >= 16 ? static_cast<__mmask16>(0xFFFF) : mask(groups - g);
          const __m128i s = _mm_subs_epu8(_mm_maskz_loadu_epi8(m, scales + g), _mm_set1_epi8(6));
          _mm512_store_si512(factor[r] + g, _mm512_slli_epi32(_mm512_cvtepu8_epi32(s), 23));
        }
      }
    }
    K3_VEC_INLINE void prefetch(const RowsJob& job, int r, int64_t k) const { prefetch_far(row[r] + k, job); }
    K3_VEC_INLINE void load(int r, int64_t k, F* w) const {
      const F scale = set(factor[r][k / kInt8Group]);
      K3_UNROLL
      for (int v = 0; v < 2; ++v) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[r] + k + 16 * v));
        w[v] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale);
      }
    }
  };
};

}  // namespace

void rows_avx512(const RowsJob& job) noexcept { rows_any<RowVec512>(job); }
void cols_avx512(const ColsJob& job) noexcept { cols_any<RowVec512>(job); }

}  // namespace k3::ops
