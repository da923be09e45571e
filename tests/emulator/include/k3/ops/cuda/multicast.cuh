// Internal to tests/emulator. Stands in front of src/k3/ops/cuda/multicast.cuh.
#pragma once

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

void bulk_load_both(uint32_t to, const void* from, uint32_t bytes, uint32_t bar);
void tma_load_lines_both(uint32_t to, const void* map, int line, int row, int matrix, uint32_t bar);
void tma_load_2d_both(uint32_t to, const void* map, int x, int y, uint32_t bar);
inline void mbar_wait_cluster(uint32_t bar, uint32_t parity) { mbar_wait(bar, parity); }

}  // namespace k3::ops::cuda
