#include "k3/ops/mxfp4/mxfp4.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "k3/base/check.h"
#include "k3/ops/mxfp4/mxfp4_kernels.h"

namespace k3::ops {
namespace {

constexpr uint32_t kMagnitude = 0x7FFFFFFF;
constexpr uint32_t kInfinity = 0x7F800000;

// 2^(s-127); byte 0 is the subnormal 2^-127.
float scale_factor(uint32_t s) { return std::bit_cast<float>(s == 0 ? 0x400000U : s << 23); }

// Scale byte of the smallest e with amax <= 6 * 2^e = 1.5 * 2^(e+2), from the bits of amax: with amax = 1.m * 2^(x-127)
// it is x - 2 if 1.m <= 1.5, else x - 1; below 0 (and for subnormals) 0, the smallest scale there is.
int64_t scale_byte(uint32_t amax) {
  const int64_t x = amax >> 23;
  return std::max<int64_t>(0, (amax & 0x7FFFFF) <= 0x400000 ? x - 2 : x - 1);
}

}  // namespace

void mxfp4_groups_portable(const uint8_t* packed, const uint8_t* scales, int64_t groups, float* out) noexcept {
  float table[16];
  for (int64_t g = 0; g < groups; ++g) {
    const float factor = scale_factor(scales[g]);
    for (int code = 0; code < 16; ++code) table[code] = mxfp4_value(code) * factor;
    for (int64_t j = 0; j < 16; ++j) {
      const uint8_t byte = packed[g * 16 + j];
      out[g * 32 + 2 * j] = table[byte & 15];
      out[g * 32 + 2 * j + 1] = table[byte >> 4];
    }
  }
}

void mxfp4_dequantise(Isa isa, const uint8_t* packed, const uint8_t* scales, int64_t rows, int64_t cols,
                      float* out) noexcept {
  K3_CHECK(cols % kMxGroup == 0, "mxfp4: {} columns are not whole groups of 32", cols);
  const int64_t groups = rows * (cols / kMxGroup);
  if (isa >= Isa::avx512) return mxfp4_groups_avx512(packed, scales, groups, out);
  if (isa == Isa::avx2) return mxfp4_groups_avx2(packed, scales, groups, out);
  mxfp4_groups_portable(packed, scales, groups, out);
}

void mxfp4_relayout(uint8_t* packed, int64_t rows, int64_t cols) noexcept {
  typedef uint8_t Bytes __attribute__((vector_size(16)));
  typedef uint16_t Words __attribute__((vector_size(16)));
  const auto words = [](Bytes x) { return reinterpret_cast<Words>(x); };
  const auto interleave = [](Bytes a, Bytes b, Bytes* out) {  // bytes of a and b in turn
    out[0] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    out[1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  };
  const int64_t blocks = cols / kMxBlock;
  for (int64_t row = 0; row < rows; ++row) {
    uint8_t* p = packed + row * (cols / 2);
    for (int64_t b = 0; b < blocks; ++b, p += kMxBlock / 2) {
      Bytes g[4], even[2], odd[2];
      std::memcpy(g, p, sizeof(g));
      // Byte j of group g has columns 2j and 2j + 1: bytes of the words 2j (even) and 2j + 1 (odd).
      interleave((g[0] & 15) | (g[1] << 4), (g[2] & 15) | (g[3] << 4), even);
      interleave((g[0] >> 4) | (g[1] & 0xF0), (g[2] >> 4) | (g[3] & 0xF0), odd);
      Words out[4];
      for (int half = 0; half < 2; ++half) {
        const Words e = words(even[half]), o = words(odd[half]);
        out[2 * half] = __builtin_shufflevector(e, o, 0, 8, 1, 9, 2, 10, 3, 11);
        out[2 * half + 1] = __builtin_shufflevector(e, o, 4, 12, 5, 13, 6, 14, 7, 15);
      }
      std::memcpy(p, out, sizeof(out));
    }
  }
}

int mxfp4_code(const uint8_t* row, int64_t cols, int64_t col) noexcept {
  const int64_t block = col / kMxBlock, in_block = col % kMxBlock;
  if (block == cols / kMxBlock) return col % 2 == 0 ? row[col / 2] & 15 : row[col / 2] >> 4;
  const int64_t group = in_block / kMxGroup, word = in_block % kMxGroup;
  const uint8_t byte = row[block * (kMxBlock / 2) + word * 2 + group / 2];
  return group % 2 == 0 ? byte & 15 : byte >> 4;
}

Status mxfp4_quantise(const float* values, int64_t rows, int64_t cols, uint8_t* packed, uint8_t* scales) {
  K3_CHECK(cols % kMxGroup == 0, "mxfp4: {} columns are not whole groups of 32", cols);
  const int64_t groups_per_row = cols / kMxGroup;
  for (int64_t g = 0; g < rows * groups_per_row; ++g) {
    const float* v = values + g * kMxGroup;
    uint32_t bits[kMxGroup], amax = 0;
    for (int64_t i = 0; i < kMxGroup; ++i) {
      bits[i] = std::bit_cast<uint32_t>(v[i]) & kMagnitude;
      amax = std::max(amax, bits[i]);
    }
    const int64_t s = scale_byte(amax);
    if (amax >= kInfinity || s > 252) {
      return fail(Code::invalid_argument, "row {}, columns {}..{}: {} cannot be stored as MXFP4 (largest magnitude 2.55e38)",
                  g / groups_per_row, g % groups_per_row * kMxGroup, (g % groups_per_row + 1) * kMxGroup - 1,
                  std::bit_cast<float>(amax));
    }
    // Midpoints between neighbouring codes, exact after scaling; floats of one sign order like their bits.
    const float factor = scale_factor(static_cast<uint32_t>(s));
    uint32_t cuts[7];
    constexpr float kCuts[7] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
    for (int c = 0; c < 7; ++c) cuts[c] = std::bit_cast<uint32_t>(kCuts[c] * factor);
    uint32_t codes[kMxGroup] = {};
    for (int c = 0; c < 7; ++c) {
      for (int64_t i = 0; i < kMxGroup; ++i) codes[i] += static_cast<uint32_t>(bits[i] > cuts[c]);
    }
    for (int64_t i = 0; i < kMxGroup; ++i) {
      codes[i] |= v[i] < 0 ? 8U : 0U;  // -0 is not below zero
    }
    for (int64_t j = 0; j < kMxGroup / 2; ++j) {
      packed[g * 16 + j] = static_cast<uint8_t>(codes[2 * j] | codes[2 * j + 1] << 4);
    }
    scales[g] = static_cast<uint8_t>(s);
  }
  return {};
}

}  // namespace k3::ops
