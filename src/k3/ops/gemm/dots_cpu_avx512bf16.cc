// dots.h: tiles of R output rows by NT tokens, accumulators in registers.
#include <immintrin.h>

#include <algorithm>

#include "k3/ops/cpu/shuffle_avx512.h"
#include "k3/ops/gemm/dots.h"
#include "k3/ops/gemm/i8_words_avx512.h"
#include "k3/ops/gemm/mx_words_avx512.h"

namespace k3::ops {
namespace {

using F = __m512;
using I = __m512i;

K3_VEC_INLINE F dot(F acc, I a, I b) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

K3_VEC_INLINE const uint8_t* row_of(const DotsJob& job, int64_t row) {
  return static_cast<const uint8_t*>(job.w.data) + std::min(row, job.row_end - 1) * scheme_row_bytes(job.w.scheme, job.w.cols);
}

// Rows of BF16 numbers are asked for beyond two pages ahead, or it gets in the way of the prefetchers of the hardware. Asking
// beyond the end of the data is harmless.
constexpr int64_t kAheadBytes = 10240;
// Experts are small and lie anywhere: so much of each stream is asked for at its start, and as far ahead from there on.
constexpr int64_t kMxAheadBytes = 1024;

K3_VEC_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// ---- MXFP4 ----

// R rows of a block of columns; `whole` of the columns lie in whole blocks of the packing.
template <int R>
struct MxRows {
  MxRow row[R];
  int64_t whole;
  bool tiny = false;

  K3_VEC_INLINE MxRows(const DotsJob& job, const int64_t* rows, int64_t k0, int64_t columns) {
    whole = std::min(columns, job.w.cols / kMxBlock * kMxBlock - k0);
    K3_UNROLL
    for (int r = 0; r < R; ++r) {
      const int64_t o = std::min(rows[r], job.row_end - 1);
      row[r].codes = row_of(job, o) + k0 / 2;
      row[r].scales = job.w.scales + o * (job.w.cols / kMxGroup) + k0 / kMxGroup;
      prefetch(row[r].scales + kMxAheadBytes / 4);
      tiny |= mx_prepare_scales(row[r].scales, columns / kMxGroup, row[r].deltas);
    }
  }
};

template <int R, int NT, bool kTiny>
K3_VEC_INLINE void accumulate_mx(const MxRows<R>& w, const uint16_t* const* x, int64_t columns, F (*acc)[R]) {
  int64_t k = 0;
  for (; k < w.whole; k += kMxBlock) {
    I in[NT][4];
    K3_UNROLL
    for (int t = 0; t < NT; ++t) {
      K3_UNROLL
      for (int g = 0; g < 4; ++g) in[t][g] = _mm512_loadu_si512(x[t] + k + g * kMxGroup);
    }
    K3_UNROLL
    for (int r = 0; r < R; ++r) {
      prefetch(w.row[r].codes + k / 2 + kMxAheadBytes);
      I rows[4];
      mx_block<kTiny>(w.row[r], k, rows);
      K3_UNROLL
      for (int g = 0; g < 4; ++g) {
        K3_UNROLL
        for (int t = 0; t < NT; ++t) acc[t][r] = dot(acc[t][r], rows[g], in[t][g]);
      }
    }
  }
  for (; k < columns; k += kMxGroup) {
    K3_UNROLL
    for (int r = 0; r < R; ++r) {
      prefetch(w.row[r].codes + k / 2 + kMxAheadBytes);
      const I row = mx_stored_group<kTiny>(w.row[r], k);
      K3_UNROLL
      for (int t = 0; t < NT; ++t) acc[t][r] = dot(acc[t][r], row, _mm512_loadu_si512(x[t] + k));
    }
  }
}

// 32 columns, or those of the mask, of rows that are BF16 in memory.
template <int R, int NT>
K3_VEC_INLINE void step_bf16(const uint16_t* const* row, const uint16_t* const* x, int64_t k, F (*acc)[R]) {
  I w[R];
  K3_UNROLL
  for (int r = 0; r < R; ++r) w[r] = _mm512_loadu_si512(row[r] + k);
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    const I in = _mm512_loadu_si512(x[t] + k);
    K3_UNROLL
    for (int r = 0; r < R; ++r) acc[t][r] = dot(acc[t][r], w[r], in);
  }
}

template <int R, int NT>
K3_VEC_INLINE void tail_bf16(const uint16_t* const* row, const uint16_t* const* x, int64_t k, int64_t columns, F (*acc)[R]) {
  const __mmask32 m = static_cast<__mmask32>((uint64_t{1} << (columns - k)) - 1);
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    const I in = _mm512_maskz_loadu_epi16(m, x[t] + k);
    K3_UNROLL
    for (int r = 0; r < R; ++r) acc[t][r] = dot(acc[t][r], _mm512_maskz_loadu_epi16(m, row[r] + k), in);
  }
}

// kAsk > 0: one line in kAsk is asked for ahead.
template <int R, int NT, int kAsk = 0>
K3_VEC_INLINE void accumulate_bf16(const uint16_t* const* row, const uint16_t* const* x, int64_t columns, F (*acc)[R]) {
  int64_t k = 0;
  if constexpr (kAsk > 0) {
    for (; k + 32 * kAsk <= columns; k += 32 * kAsk) {
      K3_UNROLL
      for (int r = 0; r < R; ++r) prefetch(reinterpret_cast<const char*>(row[r] + k) + kAheadBytes);
      K3_UNROLL
      for (int i = 0; i < kAsk; ++i) step_bf16<R, NT>(row, x, k + 32 * i, acc);
    }
  }
  for (; k + 32 <= columns; k += 32) step_bf16<R, NT>(row, x, k, acc);
  if (k < columns) tail_bf16<R, NT>(row, x, k, columns, acc);
}

template <int R, int NT>
K3_VEC_INLINE void store_sums(const DotsJob& job, int64_t token, int64_t row, bool first, F (*acc)[R]) {
  const int64_t rows = std::min<int64_t>(R, job.row_end - row);
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    float* y = job.y[token + t] + (row - job.y_origin);
    K3_UNROLL
    for (int r = 0; r < R; r += 4) {
      const __m128 sums = sums_of_four(acc[t][r], acc[t][r + 1], acc[t][r + 2], acc[t][r + 3]);
      const auto m = static_cast<__mmask8>(rows - r >= 4 ? 15 : rows <= r ? 0 : (1 << (rows - r)) - 1);
      _mm_mask_storeu_ps(y + r, m, first ? sums : _mm_add_ps(_mm_maskz_loadu_ps(m, y + r), sums));
    }
  }
}

template <int R, int NT>
void tile_bf16(const DotsJob& job, const uint16_t* w, int64_t stride, int64_t last, int64_t token, int64_t row, int64_t k0,
               int64_t columns) {
  F acc[NT][R];
  const uint16_t* x[NT];
  const uint16_t* rows[R];
  K3_UNROLL
  for (int r = 0; r < R; ++r) rows[r] = w + std::min<int64_t>(r, last) * stride;
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    x[t] = job.x[token + t] + k0;
    K3_UNROLL
    for (int r = 0; r < R; ++r) acc[t][r] = _mm512_setzero_ps();
  }
  accumulate_bf16<R, NT>(rows, x, columns, acc);
  store_sums<R, NT>(job, token, row, k0 == 0, acc);
}

// ---- few tokens: weights are decoded in registers and used at once ----

constexpr int64_t kDirectTokens = 4;

K3_VEC_INLINE void add_sum(const DotsJob& job, int64_t token, int64_t row, bool first, float sum) {
  if (row >= job.row_end) return;
  float& y = job.y[token][row - job.y_origin];
  y = first ? sum : y + sum;
}

// The sums of R rows that lie anywhere: fours of tokens where there are many, else fours of rows.
template <int R, int NT>
K3_VEC_INLINE void scatter_sums(const DotsJob& job, const int64_t* rows, bool first, F (*acc)[R]) {
  alignas(16) float s[4];
  if constexpr (NT > 2) {
    K3_UNROLL
    for (int r = 0; r < R; ++r) {
      _mm_store_ps(s, sums_of_four(acc[0][r], acc[1][r], acc[2][r], acc[NT - 1][r]));
      K3_UNROLL
      for (int t = 0; t < NT; ++t) add_sum(job, t, rows[r], first, s[t]);
    }
  } else {
    static_assert(R % 4 == 0);
    K3_UNROLL
    for (int t = 0; t < NT; ++t) {
      K3_UNROLL
      for (int r = 0; r < R; r += 4) {
        _mm_store_ps(s, sums_of_four(acc[t][r], acc[t][r + 1], acc[t][r + 2], acc[t][r + 3]));
        K3_UNROLL
        for (int i = 0; i < 4; ++i) add_sum(job, t, rows[r + i], first, s[i]);
      }
    }
  }
}

// The rows of a job as R streams, each of rows that follow each other in memory. Rows side by side that share pages (2 to
// 4 KiB apart) are read at two thirds of the speed: the prefetchers of the hardware see one stream a page.
template <int R>
struct Streams {
  int64_t first;
  int64_t count;  // of each stream but the last: a multiple of `grain` where there are so many rows

  Streams(const DotsJob& job, int64_t grain) : first(job.row_begin), count((job.row_end - job.row_begin + R - 1) / R) {
    if (count >= grain) count = (count + grain - 1) / grain * grain;
  }
  K3_VEC_INLINE void rows_at(int64_t i, int64_t* rows) const {
    K3_UNROLL
    for (int r = 0; r < R; ++r) rows[r] = first + r * count + i;
  }
};

template <int R, int NT>
K3_VEC_INLINE void start_block(const DotsJob& job, int64_t k0, const uint16_t** x, F (*acc)[R]) {
  K3_UNROLL
  for (int t = 0; t < NT; ++t) {
    x[t] = job.x[t] + k0;
    K3_UNROLL
    for (int r = 0; r < R; ++r) acc[t][r] = _mm512_setzero_ps();
  }
}

template <int R, int NT>
void direct_mx(const DotsJob& job) {
  const Streams<R> streams(job, 1);
  int64_t rows[R];
  streams.rows_at(0, rows);
  for (int r = 0; r < R; ++r) {
    for (int64_t i = 0; i < kMxAheadBytes; i += 64) prefetch(row_of(job, rows[r]) + i);
    prefetch(job.w.scales + std::min(rows[r], job.row_end - 1) * (job.w.cols / kMxGroup));
  }
  for (int64_t i = 0; i < streams.count; ++i) {
    streams.rows_at(i, rows);
    for (int64_t k0 = 0; k0 < job.w.cols; k0 += kDotsBlock) {
      const int64_t columns = std::min(kDotsBlock, job.w.cols - k0);
      const MxRows<R> w(job, rows, k0, columns);
      const uint16_t* x[NT];
      F acc[NT][R];
      start_block<R, NT>(job, k0, x, acc);
      if (w.tiny) {
        accumulate_mx<R, NT, true>(w, x, columns, acc);
      } else {
        accumulate_mx<R, NT, false>(w, x, columns, acc);
      }
      scatter_sums<R, NT>(job, rows, k0 == 0, acc);
    }
  }
}

template <int R, int NT, int kAsk>
void streams_bf16(const DotsJob& job) {
  // Streams that cross pages at the same time are up to a sixth faster than others: rows until one begins where a page may.
  const int64_t row_bytes = job.w.cols * 2;
  const Streams<R> streams(job, 4096 / std::min<int64_t>(4096, row_bytes & -row_bytes));
  for (int64_t i = 0; i < streams.count; ++i) {
    int64_t rows[R];
    streams.rows_at(i, rows);
    for (int64_t k0 = 0; k0 < job.w.cols; k0 += kDotsBlock) {
      const uint16_t* w[R];
      const uint16_t* x[NT];
      F acc[NT][R];
      start_block<R, NT>(job, k0, x, acc);
      K3_UNROLL
      for (int r = 0; r < R; ++r) w[r] = reinterpret_cast<const uint16_t*>(row_of(job, rows[r])) + k0;
      accumulate_bf16<R, NT, kAsk>(w, x, std::min(kDotsBlock, job.w.cols - k0), acc);
      scatter_sums<R, NT>(job, rows, k0 == 0, acc);
    }
  }
}

// Streams and how many lines are asked for ahead, both measured. Where x of several tokens fills the first-level cache, rows
// share what is read of it from the second, so the more of them the better; registers end at six rows by four tokens. Four
// tokens on short rows are four chains already, and one stream is the fastest to read.
constexpr int64_t kShortColumns = 2 * kDotsBlock;

template <int NT>
void direct_bf16(const DotsJob& job) {
  const bool wide = job.w.cols > kShortColumns;
  if constexpr (NT == 1) return streams_bf16<4, NT, 4>(job);
  if constexpr (NT == 2) return wide ? streams_bf16<8, NT, 2>(job) : streams_bf16<4, NT, 4>(job);
  if constexpr (NT == 3) return wide ? streams_bf16<6, NT, 2>(job) : streams_bf16<2, NT, 4>(job);
  if constexpr (NT == 4) return wide ? streams_bf16<6, NT, 2>(job) : streams_bf16<1, NT, 1>(job);
}

template <int R, int NT>
void direct(const DotsJob& job) {
  job.w.scheme == Scheme::mxfp4 ? direct_mx<R, NT>(job) : direct_bf16<NT>(job);
}

// ---- many tokens: a block of rows and columns stays in the second-level cache while all tokens pass ----

constexpr int64_t kTileTokens = 6;

void decode_panel(const DotsJob& job, int64_t row0, int64_t row1, int64_t k0, int64_t columns) {
  for (int64_t row = row0; row < row1; ++row) {
    uint16_t* out = job.panel + (row - row0) * kDotsPanelStride;
    job.w.scheme == Scheme::i8 ? i8_decode(job.w, row, k0, columns, out) : mx_decode(job.w, row, k0, columns, out);
  }
}

template <int NT = kTileTokens>
void tile_any(const DotsJob& job, const uint16_t* w, int64_t stride, int64_t last, int64_t token, int64_t count, int64_t row,
              int64_t k0, int64_t columns) {
  if constexpr (NT > 1) {
    if (count < NT) return tile_any<NT - 1>(job, w, stride, last, token, count, row, k0, columns);
  }
  tile_bf16<4, NT>(job, w, stride, last, token, row, k0, columns);
}

void blocked(const DotsJob& job) {
  const int64_t tiles = (job.tokens + kTileTokens - 1) / kTileTokens;  // of equal size, up to one
  for (int64_t row0 = job.row_begin; row0 < job.row_end; row0 += kDotsPanelRows) {
    const int64_t row1 = std::min(row0 + kDotsPanelRows, job.row_end);
    for (int64_t k0 = 0; k0 < job.w.cols; k0 += kDotsBlock) {
      const int64_t columns = std::min(kDotsBlock, job.w.cols - k0);
      const uint16_t* w = job.panel;
      int64_t stride = kDotsPanelStride;
      if (scheme_has_scales(job.w.scheme)) {
        decode_panel(job, row0, row1, k0, columns);
      } else {
        w = reinterpret_cast<const uint16_t*>(row_of(job, row0)) + k0;
        stride = job.w.cols;
      }
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t token = job.tokens * i / tiles, count = job.tokens * (i + 1) / tiles - token;
        for (int64_t row = row0; row < row1; row += 4) {
          tile_any(job, w + (row - row0) * stride, stride, row1 - 1 - row, token, count, row, k0, columns);
        }
      }
    }
  }
}

}  // namespace

void dots_avx512bf16(const DotsJob& job) noexcept {
  if (job.tokens == 0 || job.row_begin >= job.row_end) return;
  if (job.w.scheme == Scheme::i8) return blocked(job);
  static_assert(kDirectTokens == 4);
  switch (job.tokens) {
    case 1: return direct<8, 1>(job);
    case 2: return direct<8, 2>(job);
    case 3: return direct<4, 3>(job);
    case 4: return direct<4, 4>(job);
    default: return blocked(job);
  }
}

void to_bf16_avx512bf16(const float* x, int64_t count, uint16_t* out) noexcept {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i))));
  }
  if (i < count) {
    const auto m = static_cast<__mmask16>((1U << (count - i)) - 1U);
    _mm256_mask_storeu_epi16(out + i, m, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(m, x + i))));
  }
}

}  // namespace k3::ops
