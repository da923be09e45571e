// int8_dots.h by the 8-bit dot instruction, which takes one side unsigned: |w| times x with the sign of w where rows are
// read once, w plus a bias (whose share is subtracted through the sums of x) where many tokens pass over decoded rows.
#include <immintrin.h>

#include <algorithm>

#include "k3/ops/cpu/vec_math.h"
#include "k3/ops/gemm/int8_decode.h"

namespace k3::ops {
namespace {

using F = __m512;
using I = __m512i;

constexpr int64_t kBlock = 128;  // columns of a step: two lines of i8, one of mxfp4
constexpr int kRows = 4;
constexpr int64_t kAheadBytes = 8192;

// Sums of four vectors: pairs of lanes 1 apart, 2 apart, then the quarters.
K3_VEC_INLINE __m128 sum4(F a, F b, F c, F d) {
  const F ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const F cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d ab2 = _mm512_castps_pd(ab), cd2 = _mm512_castps_pd(cd);
  const F q = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab2, cd2)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab2, cd2)));
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(q), _mm512_extractf32x8_ps(q, 1));
  return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

// ---- decoders: `step` gives 128 columns as two vectors of |w| and signs; x is brought into their order ----

struct Magnitudes {
  I value[2];
  __mmask64 negative[2];
};

struct StepI8 {
  static K3_VEC_INLINE Magnitudes step(const uint8_t* p) {
    Magnitudes m;
    K3_UNROLL
    for (int i = 0; i < 2; ++i) {
      const I w = _mm512_loadu_si512(p + 64 * i);
      m.value[i] = _mm512_abs_epi8(w);
      m.negative[i] = _mm512_movepi8_mask(w);
    }
    return m;
  }
  static K3_VEC_INLINE void order(I* x) { static_cast<void>(x); }
  // Factors of groups 0..3 in every quarter -> those of the groups in each half of vector `i`.
  static K3_VEC_INLINE F spread(F factors, int i) {
    const I first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    return _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(2 * i)), factors);
  }
  static K3_VEC_INLINE __m256i group(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
};

// Codes of groups 0 and 2, and of 1 and 3, after the low bytes of all words are brought before the high ones.
K3_VEC_INLINE void mx_codes(const uint8_t* p, I* codes) {
  alignas(64) static constexpr uint8_t kApart[64] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                     32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62,
                                                     1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                     33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const I low = _mm512_set1_epi8(15);
  const I bytes = _mm512_permutexvar_epi8(_mm512_load_si512(kApart), _mm512_loadu_si512(p));
  codes[0] = _mm512_and_si512(bytes, low);
  codes[1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
}

struct StepMx {
  static K3_VEC_INLINE Magnitudes step(const uint8_t* p) {
    const I table = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, 1, 2, 3, 4, 6, 8, 12));
    I codes[2];
    mx_codes(p, codes);
    Magnitudes m;
    K3_UNROLL
    for (int i = 0; i < 2; ++i) {
      m.value[i] = _mm512_shuffle_epi8(table, codes[i]);
      m.negative[i] = _mm512_test_epi8_mask(codes[i], _mm512_set1_epi8(8));
    }
    return m;
  }
  static K3_VEC_INLINE void order(I* x) {
    const I even = _mm512_shuffle_i64x2(x[0], x[1], 0x44), odd = _mm512_shuffle_i64x2(x[0], x[1], 0xEE);
    x[0] = even;
    x[1] = odd;
  }
  static K3_VEC_INLINE F spread(F factors, int i) {
    const I first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
    return _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(i)), factors);
  }
  // A group beyond the whole blocks: byte j holds columns 2 j and 2 j + 1.
  static K3_VEC_INLINE __m256i group(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), mask = _mm_set1_epi8(15);
    const __m128i low = _mm_and_si128(bytes, mask), high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
    const __m256i codes = _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kMxDoubled));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
  }
};

// ---- few tokens: weights are decoded in registers and used at once ----

// Rows of a tile, of one block of kInt8Block columns.
struct Rows {
  const uint8_t* data[kRows];
  alignas(64) float factors[kRows][kInt8Block / kInt8DotGroup];
};

K3_VEC_INLINE void begin_rows(const Int8Job& job, int64_t first, int64_t k0, int64_t columns, Rows& rows) {
  const auto bias = static_cast<char>(int8_scale_bias(job.w.scheme));
  const int64_t groups = columns / kInt8DotGroup;
  K3_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const int64_t o = std::min(first + r, job.row_end - 1);
    rows.data[r] = int8_weight_row(job.w, o, k0);
    const uint8_t* scales = job.w.scales + (o * job.w.cols + k0) / kInt8DotGroup;
    for (int64_t g = 0; g < groups; g += 16) {
      const auto m = static_cast<__mmask16>(groups - g >= 16 ? 0xFFFF : (1U << (groups - g)) - 1U);
      const __m128i s = _mm_subs_epu8(_mm_maskz_loadu_epi8(m, scales + g), _mm_set1_epi8(bias));
      _mm512_store_si512(rows.factors[r] + g, _mm512_slli_epi32(_mm512_cvtepu8_epi32(s), 23));
    }
  }
}

// Rows follow each other in memory, so the place that many whole tiles on is wanted soon.
K3_VEC_INLINE int64_t bytes_ahead(int64_t tile) { return (kAheadBytes + tile - 1) / tile * tile; }

template <class Step, int NT>
K3_VEC_INLINE void tile_block(const Int8Job& job, const Rows& rows, int64_t token, int64_t k0, int64_t columns, bool mx,
                              F (*acc)[kRows]) {
  const int64_t whole = columns / kBlock * kBlock;
  const int64_t ahead = bytes_ahead(kRows * scheme_row_bytes(job.w.scheme, job.w.cols));
  const uint8_t* q[NT];
  const float* scales[NT];
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    q[t] = job.x[token + t] + k0;
    scales[t] = int8_scales(job.x[token + t], job.w.cols) + k0 / kInt8DotGroup;
  }
  int64_t k = 0;
  for (; k < whole; k += kBlock) {
    const int64_t g = k / kInt8DotGroup, at = mx ? k / 2 : k;
    I x[NT][2];
    F scale[NT];
    K3_UNROLL
    for (int t = 0; t < NT; ++t) {
      x[t][0] = _mm512_loadu_si512(q[t] + k);
      x[t][1] = _mm512_loadu_si512(q[t] + k + 64);
      Step::order(x[t]);
      scale[t] = _mm512_broadcast_f32x4(_mm_loadu_ps(scales[t] + g));
    }
    K3_UNROLL
    for (int r = 0; r < kRows; ++r) {
      _mm_prefetch(reinterpret_cast<const char*>(rows.data[r] + at + ahead), _MM_HINT_T1);
      if (!mx) _mm_prefetch(reinterpret_cast<const char*>(rows.data[r] + at + ahead + 64), _MM_HINT_T1);
      const Magnitudes w = Step::step(rows.data[r] + at);
      const F factor = _mm512_broadcast_f32x4(_mm_load_ps(rows.factors[r] + g));
      K3_UNROLL
      for (int t = 0; t < NT; ++t) {
        const F both = _mm512_mul_ps(factor, scale[t]);
        K3_UNROLL
        for (int i = 0; i < 2; ++i) {
          const I in = _mm512_mask_sub_epi8(x[t][i], w.negative[i], _mm512_setzero_si512(), x[t][i]);
          const I dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w.value[i], in);
          acc[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), Step::spread(both, i), acc[t][r]);
        }
      }
    }
  }
  for (; k < columns; k += kInt8DotGroup) {
    const int64_t g = k / kInt8DotGroup;
    K3_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m256i w = Step::group(rows.data[r] + (mx ? k / 2 : k));
      K3_UNROLL
      for (int t = 0; t < NT; ++t) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q[t] + k));
        const __m256i dots = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
        const F wide = _mm512_zextps256_ps512(_mm256_cvtepi32_ps(dots));
        acc[t][r] = _mm512_fmadd_ps(wide, _mm512_set1_ps(rows.factors[r][g] * scales[t][g]), acc[t][r]);
      }
    }
  }
}

template <class Step, int NT>
void direct(const Int8Job& job, int64_t token) {
  const bool mx = job.w.scheme == Scheme::mxfp4;
  Rows rows;
  for (int64_t row = job.row_begin; row < job.row_end; row += kRows) {
    const auto m = static_cast<__mmask8>(job.row_end - row >= 4 ? 15 : (1 << (job.row_end - row)) - 1);
    __m128 sums[NT];
    for (int64_t k0 = 0; k0 < job.w.cols; k0 += kInt8Block) {
      const int64_t columns = std::min(kInt8Block, job.w.cols - k0);
      begin_rows(job, row, k0, columns, rows);
      F acc[NT][kRows];
      K3_UNROLL
      for (int t = 0; t < NT; ++t) {
        K3_UNROLL
        for (int r = 0; r < kRows; ++r) acc[t][r] = _mm512_setzero_ps();
      }
      tile_block<Step, NT>(job, rows, token, k0, columns, mx, acc);
      K3_UNROLL
      for (int t = 0; t < NT; ++t) {
        const __m128 s = sum4(acc[t][0], acc[t][1], acc[t][2], acc[t][3]);
        sums[t] = k0 == 0 ? s : _mm_add_ps(sums[t], s);
      }
    }
    K3_UNROLL
    for (int t = 0; t < NT; ++t) _mm_mask_storeu_ps(job.y[token + t] + (row - job.y_origin), m, sums[t]);
  }
}

template <class Step>
void by_rows(const Int8Job& job) {
  int64_t t = 0;
  for (; t + 4 <= job.tokens; t += 4) direct<Step, 4>(job, t);
  switch (job.tokens - t) {
    case 1: return direct<Step, 1>(job, t);
    case 2: return direct<Step, 2>(job, t);
    case 3: return direct<Step, 3>(job, t);
    default: return;
  }
}

// ---- many tokens: lanes are rows, so that a group's eight dots add up in integers ----

constexpr int64_t kManyTokens = 24;  // under it the transpose of the panel costs more than it saves
constexpr int64_t kPanelRows = 32;
constexpr int64_t kTileTokens = 6;
constexpr int64_t kRowBytes = kPanelRows * 4;  // of a panel: four columns of all rows

// The panel: [columns / 4][rows][4] weights plus bias, [groups][rows] factors, and a row's worth of scratch.
struct Panel {
  uint8_t* weights;
  float* factors;
  uint8_t* scratch;
  int32_t bias;
};

Panel panel_of(const Int8Job& job) {
  uint8_t* factors = job.panel + kPanelRows * kInt8Block;
  return {job.panel, reinterpret_cast<float*>(factors), factors + kPanelRows * (kInt8Block / kInt8DotGroup) * 4,
          job.w.scheme == Scheme::i8 ? 128 : 12};
}

// One row of the block in its natural order, plus the bias.
void biased_row(const Int8Job& job, int64_t row, int64_t k0, int64_t columns, uint8_t* out) {
  const uint8_t* p = int8_weight_row(job.w, row, k0);
  int64_t k = 0;
  if (job.w.scheme == Scheme::i8) {
    for (; k < columns; k += 32) {
      const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + k));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k), _mm256_xor_si256(w, _mm256_set1_epi8(-128)));
    }
    return;
  }
  const I table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  for (; k < columns / kBlock * kBlock; k += kBlock) {
    I codes[2];
    mx_codes(p + k / 2, codes);
    const I even = _mm512_shuffle_epi8(table, codes[0]), odd = _mm512_shuffle_epi8(table, codes[1]);
    _mm512_storeu_si512(out + k, _mm512_shuffle_i64x2(even, odd, 0x44));
    _mm512_storeu_si512(out + k + 64, _mm512_shuffle_i64x2(even, odd, 0xEE));
  }
  for (; k < columns; k += kInt8DotGroup) {
    const __m256i w = StepMx::group(p + k / 2);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k), _mm256_add_epi8(w, _mm256_set1_epi8(12)));
  }
}

void fill_panel(const Int8Job& job, int64_t row0, int64_t k0, int64_t columns, const Panel& panel) {
  float factors[kInt8Block / kInt8DotGroup];
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const int64_t row = std::min(row0 + r, job.row_end - 1);
    biased_row(job, row, k0, columns, panel.scratch);
    for (int64_t k = 0; k < columns; k += 4) std::memcpy(panel.weights + k * kPanelRows + 4 * r, panel.scratch + k, 4);
    int8_factors(job.w, row, k0, columns, factors);
    for (int64_t g = 0; g < columns / kInt8DotGroup; ++g) panel.factors[g * kPanelRows + r] = factors[g];
  }
}

template <int NT>
void tile_many(const Int8Job& job, const Panel& panel, int64_t token, int64_t row0, int64_t k0, int64_t columns) {
  const uint8_t* q[NT];
  const float* scales[NT];
  const int32_t* sums[NT];
  F acc[NT][2];
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    q[t] = job.x[token + t] + k0;
    scales[t] = int8_scales(job.x[token + t], job.w.cols) + k0 / kInt8DotGroup;
    sums[t] = int8_sums(job.x[token + t], job.w.cols) + k0 / kInt8DotGroup;
    acc[t][0] = acc[t][1] = _mm512_setzero_ps();
  }
  for (int64_t g = 0; g < columns / kInt8DotGroup; ++g) {
    const uint8_t* w = panel.weights + g * kInt8DotGroup * kPanelRows;
    I dots[NT][2];
    K3_UNROLL
    for (int t = 0; t < NT; ++t) dots[t][0] = dots[t][1] = _mm512_set1_epi32(-panel.bias * sums[t][g]);
    K3_UNROLL
    for (int k = 0; k < kInt8DotGroup / 4; ++k) {
      const I low = _mm512_load_si512(w + k * kRowBytes), high = _mm512_load_si512(w + k * kRowBytes + 64);
      K3_UNROLL
      for (int t = 0; t < NT; ++t) {
        int32_t four;
        std::memcpy(&four, q[t] + g * kInt8DotGroup + 4 * k, 4);
        const I x = _mm512_set1_epi32(four);
        dots[t][0] = _mm512_dpbusd_epi32(dots[t][0], low, x);
        dots[t][1] = _mm512_dpbusd_epi32(dots[t][1], high, x);
      }
    }
    const F low = _mm512_load_ps(panel.factors + g * kPanelRows), high = _mm512_load_ps(panel.factors + g * kPanelRows + 16);
    K3_UNROLL
    for (int t = 0; t < NT; ++t) {
      const F scale = _mm512_set1_ps(scales[t][g]);
      acc[t][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t][0]), _mm512_mul_ps(low, scale), acc[t][0]);
      acc[t][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t][1]), _mm512_mul_ps(high, scale), acc[t][1]);
    }
  }
  const auto m = static_cast<uint32_t>(job.row_end - row0 >= 32 ? ~uint64_t{0} : (uint64_t{1} << (job.row_end - row0)) - 1);
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    float* y = job.y[token + t] + (row0 - job.y_origin);
    K3_UNROLL
    for (int i = 0; i < 2; ++i) {
      const auto half = static_cast<__mmask16>(m >> (16 * i));
      const F before = k0 == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(half, y + 16 * i);
      _mm512_mask_storeu_ps(y + 16 * i, half, _mm512_add_ps(before, acc[t][i]));
    }
  }
}

template <int NT = kTileTokens>
void tile_any(const Int8Job& job, const Panel& panel, int64_t token, int64_t count, int64_t row0, int64_t k0,
              int64_t columns) {
  if constexpr (NT > 1) {
    if (count < NT) return tile_any<NT - 1>(job, panel, token, count, row0, k0, columns);
  }
  tile_many<NT>(job, panel, token, row0, k0, columns);
}

void blocked(const Int8Job& job) {
  const Panel panel = panel_of(job);
  const int64_t tiles = (job.tokens + kTileTokens - 1) / kTileTokens;  // of equal size, up to one
  for (int64_t row0 = job.row_begin; row0 < job.row_end; row0 += kPanelRows) {
    for (int64_t k0 = 0; k0 < job.w.cols; k0 += kInt8Block) {
      const int64_t columns = std::min(kInt8Block, job.w.cols - k0);
      fill_panel(job, row0, k0, columns, panel);
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t token = job.tokens * i / tiles, count = job.tokens * (i + 1) / tiles - token;
        tile_any(job, panel, token, count, row0, k0, columns);
      }
    }
  }
}

}  // namespace

void int8_avx512bf16(const Int8Job& job) noexcept {
  if (job.tokens == 0 || job.row_begin >= job.row_end) return;
  if (!job.by_rows && job.tokens >= kManyTokens) return blocked(job);
  job.w.scheme == Scheme::i8 ? by_rows<StepI8>(job) : by_rows<StepMx>(job);
}

}  // namespace k3::ops
