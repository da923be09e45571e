// The parts of mla_matrix.h between the products. No std templates here (vec_math.h).
#include <immintrin.h>

#include "k3/ops/cpu/shuffle_avx512.h"
#include "k3/ops/cpu/vec_math_avx512.h"
#include "k3/ops/mla/mla_matrix.h"

namespace k3::ops {
namespace {

using F = __m512;
using I = __m512i;

K3_VEC_INLINE I round32(const float* p) {
  return reinterpret_cast<I>(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(p + 16), _mm512_loadu_ps(p)));
}

// 16 rows of 32 numbers as pairs: [pair][row][2].
K3_VEC_INLINE void store_pairs(const uint16_t* square, uint16_t* out) {
  F pairs[16];
  transpose16(square, 64, pairs);
  K3_UNROLL
  for (int i = 0; i < 16; ++i) _mm512_storeu_ps(out + 32 * i, pairs[i]);
}

// Columns of c are tokens, its rows numbers of the key: two rows make a row of pairs.
K3_VEC_INLINE void store_keys(const MlaStore& s, const __mmask16* bad) {
  const I interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                        20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (int64_t n = 0; n < s.dims.nope; n += 2) {
    for (int64_t half = 0; half < 2; ++half) {
      const float* c = s.c + n * s.c_stride + 16 * half;
      const F low = _mm512_mask_blend_ps(bad[half], _mm512_loadu_ps(c), _mm512_set1_ps(__builtin_nanf("")));
      const I both = reinterpret_cast<I>(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(c + s.c_stride), low));
      uint16_t* out = s.keys + n / 32 * kPackedBlock + half * 512 + n % 32 / 2 * 32;
      _mm512_storeu_si512(out, _mm512_permutexvar_epi16(interleave, both));
    }
  }
  const uint16_t* shared = s.latents + s.dims.rank / 32 * kPackedBlock;
  uint16_t* out = s.keys + s.dims.nope / 32 * kPackedBlock;
  for (int64_t i = 0; i < s.dims.rope / 32 * kPackedBlock; i += 32) {
    _mm512_storeu_si512(out + i, _mm512_loadu_si512(shared + i));
  }
}

// Columns of c are tokens, its rows value columns: rows of tokens are transposed. Returns in bad[half] which tokens held
// something that is not finite; those in `drop` are stored as zeros.
K3_VEC_INLINE void store_values(const MlaStore& s, const __mmask16* drop, __mmask16* bad) {
  constexpr int kNotFinite = 0x99;  // quiet and signalling NaN, both infinities
  for (int64_t v = 0; v < s.dims.value; v += 16) {
    alignas(64) uint16_t square[16 * 32];
    for (int64_t r = 0; r < 16; ++r) {
      const float* c = s.c + (s.dims.nope + v + r) * s.c_stride;
      const F low = _mm512_loadu_ps(c), high = _mm512_loadu_ps(c + 16);
      bad[0] = static_cast<__mmask16>(bad[0] | _mm512_fpclass_ps_mask(low, kNotFinite));
      bad[1] = static_cast<__mmask16>(bad[1] | _mm512_fpclass_ps_mask(high, kNotFinite));
      const F kept_low = _mm512_maskz_mov_ps(static_cast<__mmask16>(~drop[0]), low);
      const F kept_high = _mm512_maskz_mov_ps(static_cast<__mmask16>(~drop[1]), high);
      _mm512_store_si512(square + 32 * r, reinterpret_cast<I>(_mm512_cvtne2ps_pbh(kept_high, kept_low)));
    }
    store_pairs(square, s.values + v / 32 * s.value_strip + v % 32 / 16 * 512);
  }
}

// 2^x for x up to about 0; zero far below, NaN for NaN. 2^(x - floor x) by the polynomial of degree 4 that is best in
// relative error (2.6e-6, a thousandth of what rounding to BF16 does next).
K3_VEC_INLINE F exp2_ps(F x) {
  const F r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  F p = _mm512_set1_ps(0.0135341679F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0520114606F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.241442757F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.693003834F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.00000259F));
  return _mm512_scalef_ps(p, x);
}

// Which of the 16 columns from k on are seen.
K3_VEC_INLINE __mmask16 seen(int64_t visible, int64_t k) {
  const int64_t n = visible - k;
  return n >= 16 ? static_cast<__mmask16>(0xFFFF) : n <= 0 ? static_cast<__mmask16>(0) : Vec512::mask(n);
}

K3_VEC_INLINE float largest(const float* scores, int64_t visible) {
  F top[2] = {_mm512_set1_ps(-__builtin_inff()), _mm512_set1_ps(-__builtin_inff())};
  int64_t k = 0;
  for (; k + 32 <= visible; k += 32) {  // the second operand is the result where one is NaN
    top[0] = _mm512_max_ps(_mm512_loadu_ps(scores + k), top[0]);
    top[1] = _mm512_max_ps(_mm512_loadu_ps(scores + k + 16), top[1]);
  }
  for (; k < visible; k += 16) {
    top[0] = _mm512_mask_max_ps(top[0], seen(visible, k), _mm512_loadu_ps(scores + k), top[0]);
  }
  return Vec512::max_lane(_mm512_max_ps(top[0], top[1]));
}

// Weights of one row in place; returns their sum. The unit that multiplies them also adds them: by ones.
K3_VEC_INLINE float weights(float* scores, int64_t columns, int64_t visible, float scale, float top) {
  const F factor = _mm512_set1_ps(scale), shift = _mm512_set1_ps(-top);
  const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3F80));
  auto* out = reinterpret_cast<uint16_t*>(scores);
  F sum = _mm512_setzero_ps();
  int64_t k = 0;
  for (; k + 32 <= visible; k += 32) {  // what is written has been read: it takes half the room
    const F low = exp2_ps(_mm512_fmadd_ps(_mm512_loadu_ps(scores + k), factor, shift));
    const F high = exp2_ps(_mm512_fmadd_ps(_mm512_loadu_ps(scores + k + 16), factor, shift));
    const __m512bh p = _mm512_cvtne2ps_pbh(high, low);
    sum = _mm512_dpbf16_ps(sum, p, ones);
    _mm512_storeu_si512(out + k, reinterpret_cast<I>(p));
  }
  for (; k < columns; k += 32) {
    const F low = exp2_ps(_mm512_fmadd_ps(_mm512_loadu_ps(scores + k), factor, shift));
    const F high = exp2_ps(_mm512_fmadd_ps(_mm512_loadu_ps(scores + k + 16), factor, shift));
    const __m512bh p =
        _mm512_cvtne2ps_pbh(_mm512_maskz_mov_ps(seen(visible, k + 16), high), _mm512_maskz_mov_ps(seen(visible, k), low));
    sum = _mm512_dpbf16_ps(sum, p, ones);
    _mm512_storeu_si512(out + k, reinterpret_cast<I>(p));
  }
  return Vec512::sum(sum);
}

}  // namespace

void mla_pack_strip(const PagedKv& cache, int64_t first, int64_t count, uint16_t* out) noexcept {
  // E4M3 is exact in BF16.
  const auto load = [&](const void* row, int64_t k) {
    if (cache.dtype == DType::bf16) return _mm512_loadu_si512(static_cast<const uint16_t*>(row) + k);
    if (cache.dtype == DType::f32) return round32(static_cast<const float*>(row) + k);
    const auto* bytes = static_cast<const uint8_t*>(row) + k;
    const I bits = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
    const I size = _mm512_and_si512(bits, _mm512_set1_epi16(0x7F));
    const I normal = _mm512_add_epi16(_mm512_slli_epi16(size, 4), _mm512_set1_epi16(120 << 7));
    const I table = _mm512_castsi128_si512(_mm_setr_epi16(0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60));  // n 2^-9
    const I small = _mm512_permutexvar_epi16(size, table);
    I value = _mm512_mask_mov_epi16(normal, _mm512_cmplt_epu16_mask(size, _mm512_set1_epi16(8)), small);
    value = _mm512_mask_mov_epi16(value, _mm512_cmpeq_epi16_mask(size, _mm512_set1_epi16(0x7F)), _mm512_set1_epi16(0x7FC0));
    return _mm512_or_si512(value, _mm512_slli_epi16(_mm512_and_si512(bits, _mm512_set1_epi16(0x80)), 8));
  };
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t begin = first + 16 * half;
    const void* rows[16];
    for (int64_t t = 0; t < 16; ++t) {
      rows[t] = 16 * half + t >= count ? nullptr : cache.row(begin + t);
    }
    for (int64_t k = 0; k < cache.width; k += 32) {
      alignas(64) uint16_t square[16 * 32];
      for (int64_t t = 0; t < 16; ++t) {
        I row = _mm512_setzero_si512();
        if (rows[t] != nullptr) row = load(rows[t], k);
        _mm512_store_si512(square + 32 * t, row);
      }
      store_pairs(square, out + k / 32 * kPackedBlock + half * 512);
    }
  }
}

void mla_store_strip(const MlaStore& s) noexcept {
  const __mmask16 none[2] = {0, 0};
  __mmask16 bad[2] = {0, 0}, again[2] = {0, 0};
  store_values(s, none, bad);
  if (bad[0] != 0 || bad[1] != 0) store_values(s, bad, again);
  store_keys(s, bad);
}

void mla_softmax_rows(const MlaSoftmax& s) noexcept {
  for (int64_t r = 0; r < s.rows; ++r) {
    float *scores = s.scores + r * kMlaScoreStride, *state = s.state + 2 * r, *sums = s.sums + r * s.width;
    const int64_t reach = s.visible + r < s.limit ? s.visible + r : s.limit;
    if (reach <= 0) {
      for (int64_t k = 0; k < s.columns; k += 32)
        _mm512_storeu_si512(reinterpret_cast<uint16_t*>(scores) + k, _mm512_setzero_si512());
      continue;
    }
    const float top = largest(scores, reach) * s.scale;
    if (s.first) {
      state[0] = top;
      state[1] = 0;
    } else if (top > state[0]) {
      const F shrink = exp2_ps(_mm512_set1_ps(state[0] - top));
      for (int64_t i = 0; i < s.width; i += 16) _mm512_storeu_ps(sums + i, _mm512_mul_ps(_mm512_loadu_ps(sums + i), shrink));
      state[1] *= _mm512_cvtss_f32(shrink);
      state[0] = top;
    }
    state[1] += weights(scores, s.columns, reach, s.scale, state[0]);
  }
}

}  // namespace k3::ops
