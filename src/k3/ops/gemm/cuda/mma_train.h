// Purpose:  matrix products of training by our own kernel: over groups of rows that begin at offsets in device memory (experts), and of
//           any size and alignment where cuBLASLt has nothing.
// Shapes:   rows:  c[r, n] = sum_k a[r, k] b_g[n, k] (or b_g[k, n]) for the rows r of group g;
//           depth: c_g[m, n] (+)= sum_r a[r, m] b[r, n] over the rows r of group g.
//           a, b BF16, c BF16 or FP32, row-major, contiguous in the last dimension. a_rows, b_rows: row r is row index[r] of the operand.
// Units:    strides in elements.
// Memory:   c overwritten or added to.
// Threads:  one stream. Every sum has one order: of k, or of r.
// Errors:   CudaStatus of the launch.
// Source:   training.md 5. mma.sync m16n8k16, FP32 sums; tolerance the rounding of c: 3e-3 of its norm in BF16, 1e-5 in FP32.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

struct RowTile {
  int32_t group, begin, end;  // rows [begin, end) of one group; begin < 0: nothing to do
};

struct MmaPair {
  const void* a;
  const void* b;
};

struct MmaTrain {
  static constexpr int kMost = 3;
  int32_t products = 1;  // that many, alike in shape: operands[i] to c[i]
  int32_t terms = 1;     // rows only: c[i] = sum over terms of operands[i + t] (then one product)
  MmaPair operands[kMost];
  void* c[kMost];
  const int32_t* a_rows[kMost];  // null: the rows themselves
  const int32_t* b_rows[kMost];  // depth only
  int64_t a_stride, b_stride, c_stride;
  int64_t b_group, c_group;      // from group to group: b in rows, c in depth
  const int32_t* offsets;        // [groups + 1] of depth; null: one group
  const RowTile* tiles;          // [tile_count] of rows, made by row_tiles_launch; null: one group
  int32_t groups, tile_count;
  int32_t m, n, k;               // rows: n, k (and m without tiles); depth: m, n (and k without offsets)
  bool b_plain;                  // b_g is [k, n]
  bool c_f32, accumulate;
};

constexpr int kMmaRows = 128;  // of a tile
int mma_rows_launch(const MmaTrain& p, void* stream);
int mma_depth_launch(const MmaTrain& p, void* stream);
// Tiles of at most kMmaRows rows that cover all groups: `most` of them, the last ones empty.
int row_tiles_launch(const int32_t* offsets, int32_t groups, RowTile* tiles, int32_t most, void* stream);

}  // namespace k3::ops::cuda
