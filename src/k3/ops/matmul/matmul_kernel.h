// Purpose:  one tile of matmul.h, and the packing of b's columns, for each instruction set.
// Shapes:   a [rows, depth] and b [depth, cols] anywhere, by strides in elements; b's columns lie side by side. c [rows, cols] strided.
// Units:    none.
// Memory:   c is overwritten, or added to. b is read in whole vectors: `cols` of the kernel, whatever the tile's.
// Threads:  any, on different tiles.
// Errors:   none.
// Source:   rows x two vectors of accumulators fill the register file; elements of a are broadcast from where they lie.
#pragma once

#include <cstdint>

namespace k3::ops {

struct MatmulTile {
  const float* a = nullptr;
  int64_t a_row = 0, a_step = 0;  // from row to row, along the depth
  const float* b = nullptr;
  int64_t b_step = 0;  // along the depth
  int64_t depth = 0;
  float* c = nullptr;
  int64_t stride = 0, rows = 0, cols = 0;
  bool accumulate = false;
};

struct MatmulKernel {
  int64_t rows, cols;  // of a tile
  void (*tile)(const MatmulTile&) noexcept;
  // to [depth][cols of the kernel] from `count` columns that lie `lane` apart, their elements `step` apart; zeros beyond count.
  void (*pack)(const float* from, int64_t lane, int64_t step, int64_t count, int64_t depth, float* to) noexcept;
};

void matmul_tile_portable(const MatmulTile& t) noexcept;
void matmul_tile_avx2(const MatmulTile& t) noexcept;
void matmul_tile_avx512(const MatmulTile& t) noexcept;
void matmul_pack_portable(const float* from, int64_t lane, int64_t step, int64_t count, int64_t depth, float* to) noexcept;
void matmul_pack_avx2(const float* from, int64_t lane, int64_t step, int64_t count, int64_t depth, float* to) noexcept;
void matmul_pack_avx512(const float* from, int64_t lane, int64_t step, int64_t count, int64_t depth, float* to) noexcept;
inline constexpr MatmulKernel kMatmulPortable{4, 8, matmul_tile_portable, matmul_pack_portable};
inline constexpr MatmulKernel kMatmulAvx2{6, 16, matmul_tile_avx2, matmul_pack_avx2};
inline constexpr MatmulKernel kMatmulAvx512{14, 32, matmul_tile_avx512, matmul_pack_avx512};

}  // namespace k3::ops
