// Purpose:  products of BF16 rows with a packed BF16 matrix that many of them meet: c[m, n] (+)= sum_k a[m, k] b[k, n].
// Shapes:   a rows of `depth`; b packed: [strip of 32 columns][block of 32 of the depth][half of 16 columns][pair of the
//           depth][column][2]; columns and depth multiples of 32; c rows of `columns` FP32.
// Units:    strides in elements.
// Memory:   rows of a may be read, and rows of c overwritten, up to a whole 16 of them.
// Threads:  pure functions.
// Errors:   none (callers check).
// Source:   kernels.md 7, as tiles.h: products of BF16 numbers are exact in FP32, sums one FP32 chain over the depth (which
//           begins with c when it adds): |c - ref| <= depth 2^-24 sum |a b|. The order depends on neither rows nor columns
//           nor on what is computed beside. Numbers under 2^-126 count as zero. Every operand lies as the unit wants it, so
//           there is no work beside the products: 16 columns are a vector of pairs and need no sum over lanes.
#pragma once

#include <cstdint>

namespace k3::ops {

inline constexpr int64_t kPackedStrip = 32;                 // columns
inline constexpr int64_t kPackedBlock = 32 * kPackedStrip;  // elements of a strip and 32 of the depth
inline constexpr int64_t kPackedRows = 16;                  // what rows are rounded up to

struct PackedJob {
  const uint16_t* a = nullptr;
  int64_t a_stride = 0;
  int64_t rows = 0;
  const uint16_t* b = nullptr;
  int64_t b_strip = 0;  // from strip to strip: a matrix may be deeper than this product
  int64_t columns = 0;
  int64_t depth = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  bool add = false;
};

using PackedFn = void (*)(const PackedJob&) noexcept;

void packed_avx512bf16(const PackedJob& job) noexcept;
void packed_amx(const PackedJob& job) noexcept;
// The loops of packed_amx without the tile unit (tiles.h).
void packed_emulated(const PackedJob& job) noexcept;

}  // namespace k3::ops
