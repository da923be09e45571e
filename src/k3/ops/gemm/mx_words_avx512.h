// Purpose:  MXFP4 weights as BF16 words, a group of 32 at a time, for the dot and tile kernels.
// Shapes:   rows in the order of memory (mxfp4.h).
// Units:    scale byte s means 2^(s-127); groups with s < 2 count as zero.
// Memory:   reads 64 bytes of codes per whole block, 16 per group beyond.
// Threads:  pure functions.
// Errors:   none.
// Source:   kernels.md 7. A code picks one of 16 BF16 words; the exponent field of the table carries the group's scale, so
//           the result is exact. Only for sources named _cpu_avx512bf16.cc or _cpu_amx.cc.
#pragma once

#include <immintrin.h>

#include "k3/ops/cpu/vec_math.h"
#include "k3/ops/mxfp4/mxfp4.h"

namespace k3::ops {
namespace {  // each source its own copy: no symbol of this code may be shared with sources of lower instruction sets

// Words of the codes, twice: the permute looks at five bits, of which the highest belongs to the next code.
alignas(64) constexpr uint16_t kMxWords[32] = {0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,
                                               0x0000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0,
                                               0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,
                                               0x0000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};
constexpr __mmask32 kMxNotZero = 0xFEFEFEFE;
constexpr int64_t kMxMaxGroups = 32;  // of one block of columns

struct MxRow {
  const uint8_t* codes;
  const uint8_t* scales;  // bytes from the block's first group on
  alignas(64) uint32_t deltas[kMxMaxGroups];
};

// Exponent increments of a block's groups, twice in each dword; true when a group must count as zero.
K3_VEC_INLINE bool mx_prepare_scales(const uint8_t* scales, int64_t groups, uint32_t* deltas) {
  __mmask16 tiny = 0;
  for (int64_t g = 0; g < groups; g += 16) {
    const __mmask16 m = groups - g >= 16 ? static_cast<__mmask16>(0xFFFF) : static_cast<__mmask16>((1U << (groups - g)) - 1U);
    const __m512i s = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(m, scales + g));
    tiny = static_cast<__mmask16>(tiny | _mm512_mask_cmplt_epu32_mask(m, s, _mm512_set1_epi32(2)));
    const __m512i delta = _mm512_slli_epi32(_mm512_sub_epi32(s, _mm512_set1_epi32(127)), 7);
    const __m512i low = _mm512_and_si512(delta, _mm512_set1_epi32(0xFFFF));
    _mm512_store_si512(deltas + g, _mm512_or_si512(low, _mm512_slli_epi32(low, 16)));
  }
  return tiny != 0;
}

template <bool kTiny>
K3_VEC_INLINE __m512i mx_table(const MxRow& row, int64_t group) {
  const __m512i delta = _mm512_set1_epi32(static_cast<int>(row.deltas[group]));
  const __mmask32 live = kTiny && row.scales[group] < 2 ? 0U : kMxNotZero;
  return _mm512_maskz_add_epi16(live, _mm512_load_si512(kMxWords), delta);
}

// A group that is not part of a whole block: byte j holds columns 2 j and 2 j + 1.
template <bool kTiny>
K3_VEC_INLINE __m512i mx_stored_group(const MxRow& row, int64_t k) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row.codes + k / 2)));
  return _mm512_permutexvar_epi16(_mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12)), mx_table<kTiny>(row, k / kMxGroup));
}

template <bool kTiny>
K3_VEC_INLINE void mx_block(const MxRow& row, int64_t k, __m512i* out) {
  const __m512i words = _mm512_loadu_si512(row.codes + k / 2);
  const int64_t g = k / kMxGroup;
  out[0] = _mm512_permutexvar_epi16(words, mx_table<kTiny>(row, g));
  out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), mx_table<kTiny>(row, g + 1));
  out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), mx_table<kTiny>(row, g + 2));
  out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), mx_table<kTiny>(row, g + 3));
}

template <bool kTiny>
K3_VEC_INLINE void mx_decode_row(const MxRow& row, int64_t whole, int64_t columns, uint16_t* out) {
  int64_t k = 0;
  for (; k < whole; k += kMxBlock) {
    __m512i words[4];
    mx_block<kTiny>(row, k, words);
    K3_UNROLL
    for (int g = 0; g < 4; ++g) _mm512_storeu_si512(out + k + g * kMxGroup, words[g]);
  }
  for (; k < columns; k += kMxGroup) _mm512_storeu_si512(out + k, mx_stored_group<kTiny>(row, k));
}

// Row `o` of w, columns [k0, k0 + columns), as BF16 words. k0 is a multiple of kMxBlock.
inline void mx_decode(const Weight& w, int64_t o, int64_t k0, int64_t columns, uint16_t* out) {
  MxRow row;
  row.codes = static_cast<const uint8_t*>(w.data) + o * (w.cols / 2) + k0 / 2;
  row.scales = w.scales + o * (w.cols / kMxGroup) + k0 / kMxGroup;
  const int64_t in_blocks = w.cols / kMxBlock * kMxBlock - k0, whole = in_blocks < columns ? in_blocks : columns;
  if (mx_prepare_scales(row.scales, columns / kMxGroup, row.deltas)) {
    mx_decode_row<true>(row, whole, columns, out);
  } else {
    mx_decode_row<false>(row, whole, columns, out);
  }
}

}  // namespace
}  // namespace k3::ops
