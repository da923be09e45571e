// Purpose:  internal to ops/gemm: one tile of matmul.h from packed panels, for each instruction set.
// Shapes:   a [depth][kRows] and b [depth][kCols] packed with zeros beyond the matrix; c [rows, cols] strided.
// Units:    none.
// Memory:   c is overwritten, or added to.
// Threads:  any, on different tiles.
// Errors:   none.
// Source:   rows x two vectors of accumulators fill the register file.
#pragma once

#include <cstdint>

namespace k3::ops {

struct MatmulTile {
  const float* a = nullptr;
  const float* b = nullptr;
  int64_t depth = 0;
  float* c = nullptr;
  int64_t stride = 0, rows = 0, cols = 0;
  bool accumulate = false;
};

struct MatmulKernel {
  int64_t rows, cols;  // of a tile
  void (*tile)(const MatmulTile&) noexcept;
};

void matmul_tile_portable(const MatmulTile& t) noexcept;
void matmul_tile_avx2(const MatmulTile& t) noexcept;
void matmul_tile_avx512(const MatmulTile& t) noexcept;
inline constexpr MatmulKernel kMatmulPortable{4, 8, matmul_tile_portable};
inline constexpr MatmulKernel kMatmulAvx2{6, 16, matmul_tile_avx2};
inline constexpr MatmulKernel kMatmulAvx512{14, 32, matmul_tile_avx512};

}  // namespace k3::ops
