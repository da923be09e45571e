// AVX2 decoders and entry points of rows.h.
#include <cstring>

#include "k3/ops/cpu/vec_math_avx2.h"
#include "k3/ops/gemm/rows_kernel.h"
#include "k3/ops/int8/int8.h"
#include "k3/ops/mxfp4/mxfp4.h"

namespace k3::ops {
namespace {

struct RowVec256 : Vec256 {
  using Q = __m128;
  static constexpr int kTileTokens = 3;
  static constexpr int64_t kBlock = kBlockCols;

  static K3_VEC_INLINE Q load4(const float* p) { return _mm_loadu_ps(p); }
  static K3_VEC_INLINE void store4(float* p, Q x) { _mm_storeu_ps(p, x); }
  static K3_VEC_INLINE Q add4(Q a, Q b) { return _mm_add_ps(a, b); }
  static K3_VEC_INLINE Q sum4(F a, F b, F c, F d) {
    const F ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const F cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const __m256d ab2 = _mm256_castps_pd(ab), cd2 = _mm256_castps_pd(cd);
    const F q =
        _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(ab2, cd2)), _mm256_castpd_ps(_mm256_unpackhi_pd(ab2, cd2)));
    return _mm_add_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1));
  }

  static K3_VEC_INLINE __m128i load16(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static K3_VEC_INLINE __m128i load16(const uint16_t* p, int64_t n) {
    __m128i x = _mm_setzero_si128();
    std::memcpy(&x, p, static_cast<size_t>(n) * 2);
    return x;
  }
  struct Bf16 {
    using Element = uint16_t;
    static K3_VEC_INLINE F wide(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
    static K3_VEC_INLINE F widen(const uint16_t* p) { return wide(load16(p)); }
    static K3_VEC_INLINE F widen(const uint16_t* p, int64_t n) { return wide(load16(p, n)); }
  };
  struct F16 {
    using Element = uint16_t;
    static K3_VEC_INLINE F widen(const uint16_t* p) { return _mm256_cvtph_ps(load16(p)); }
    static K3_VEC_INLINE F widen(const uint16_t* p, int64_t n) { return _mm256_cvtph_ps(load16(p, n)); }
  };

  // A step is a group of 32: even elements (low nibbles), then odd ones. The permute knows 8 entries: magnitudes scaled by
  // the group's factor; bit 3 of the code goes to the sign.
  struct Mx {
    static constexpr int kVectors = 4;
    static constexpr bool kDense = false;
    const uint8_t* row[kTileRows];
    int64_t whole;  // columns of whole blocks from k0 on
    alignas(32) float factor[kTileRows][kBlockCols / 32];

    K3_VEC_INLINE void begin(const RowsJob& job, int64_t first, int64_t k0, int64_t columns) {
      const int64_t groups = columns / 32;
      whole = job.w.cols / kMxBlock * kMxBlock - k0;
      K3_UNROLL
      for (int r = 0; r < kTileRows; ++r) {
        const int64_t o = clamp_row(job, first + r);
        row[r] = static_cast<const uint8_t*>(job.w.data) + o * (job.w.cols / 2) + k0 / 2;
        const uint8_t* scales = job.w.scales + o * (job.w.cols / 32) + k0 / 32;
        for (int64_t g = 0; g < groups; g += 8) {
          __m128i bytes = _mm_setzero_si128();
          if (groups - g >= 8) {
            bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + g));
          } else {
            std::memcpy(&bytes, scales + g, static_cast<size_t>(groups - g));
          }
          const __m256i s = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
          // Scale byte 0 is 2^-127, a subnormal: mantissa 0x400000.
          _mm256_store_ps(factor[r] + g, _mm256_castsi256_ps(_mm256_max_epu32(s, _mm256_set1_epi32(0x400000))));
        }
      }
    }
    static K3_VEC_INLINE F value(__m256i code, F table) {
      const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(code, 28), _mm256_set1_epi32(INT32_MIN));
      return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, code), _mm256_castsi256_ps(sign));
    }
    K3_VEC_INLINE void prefetch(const RowsJob& job, int r, int64_t k) const { prefetch_ahead(row[r] + k / 2, job); }
    K3_VEC_INLINE void load(int r, int64_t k, F* w) const {
      const F table = _mm256_mul_ps(_mm256_setr_ps(0.0F, 0.5F, 1, 1.5F, 2, 3, 4, 6), set(factor[r][k / 32]));
      if (k < whole) {  // a dword holds an even word and an odd one
        const auto* p = reinterpret_cast<const __m256i*>(row[r] + k / kMxBlock * (kMxBlock / 2));
        const __m128i shift = _mm_cvtsi64_si128(k % kMxBlock / 8);
        const __m256i a = _mm256_srl_epi32(_mm256_loadu_si256(p), shift), b = _mm256_srl_epi32(_mm256_loadu_si256(p + 1), shift);
        w[0] = value(a, table);
        w[1] = value(b, table);
        w[2] = value(_mm256_srli_epi32(a, 16), table);
        w[3] = value(_mm256_srli_epi32(b, 16), table);
        return;
      }
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[r] + k / 2));
      const __m256i a = _mm256_cvtepu8_epi32(bytes), b = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes));
      w[0] = value(a, table);
      w[1] = value(b, table);
      w[2] = value(_mm256_srli_epi32(a, 4), table);
      w[3] = value(_mm256_srli_epi32(b, 4), table);
    }
  };
  // A step is a group of 32.
  struct I8 : I8Rows {
    static constexpr int kVectors = 4;

    K3_VEC_INLINE void load(int r, int64_t k, F* w) const {
      const uint32_t s = scales[r][k / kInt8Group];
      const F factor = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>((s > 6 ? s - 6 : 0) << 23)));
      K3_UNROLL
      for (int v = 0; v < 4; ++v) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row[r] + k + 8 * v));
        w[v] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), factor);
      }
    }
  };
};

}  // namespace

void rows_avx2(const RowsJob& job) noexcept { rows_any<RowVec256>(job); }
void cols_avx2(const ColsJob& job) noexcept { cols_any<RowVec256>(job); }

}  // namespace k3::ops
