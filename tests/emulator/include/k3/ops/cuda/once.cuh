// Internal to tests/emulator. Stands in front of src/k3/ops/cuda/once.cuh.
#pragma once

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

inline void bulk_load_once(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) { bulk_load(to, from, bytes, bar); }
void tma_load_lines(uint32_t to, const void* map, int line, int row, int matrix, uint32_t bar);
inline void tma_load_lines_once(uint32_t to, const void* map, int line, int row, int matrix, uint32_t bar) {
  tma_load_lines(to, map, line, row, matrix, bar);
}

}  // namespace k3::ops::cuda
