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
// 0 or a cudaError_t.
int encode_map(CUtensorMap* map, const MapShape& shape);

}  // namespace k3::ops::cuda
