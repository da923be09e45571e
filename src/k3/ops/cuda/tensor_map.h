// Internal to ops/cuda. Tensor maps for the copy engine; the driver's encoder is found at run time.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace k3::ops::cuda {

// BF16, 128-byte swizzle. sizes, strides (elements; strides[0] is 1) and box innermost first; box[0] is 64.
struct MapShape {
  const void* base = nullptr;
  int rank = 2;
  int64_t sizes[3] = {}, strides[3] = {};
  int box[3] = {64, 1, 1};
};
// Bytes as they lie, in lines of 128: line, row of a matrix, matrix. strides (bytes) of rows and matrices; box: lines and rows.
struct LineMapShape {
  const void* base = nullptr;
  int64_t lines = 0, rows = 0, matrices = 0, row_bytes = 0, matrix_bytes = 0;
  int box_lines = 1, box_rows = 1;
};
// 0 or a cudaError_t.
int encode_line_map(CUtensorMap* map, const LineMapShape& shape);
int encode_map(CUtensorMap* map, const MapShape& shape);

}  // namespace k3::ops::cuda
