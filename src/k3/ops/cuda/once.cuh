// Internal to ops/cuda. Bulk loads of weights that pass once a step: they leave L2 first, so that activations, states and the code of
// kernels stay there while gigabytes go through.
#pragma once

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

__device__ __forceinline__ void bulk_load_once(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy;\n}\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}

// Boxes of a map of lines (tensor_map.h).
__device__ __forceinline__ void tma_load_lines_once(uint32_t to, const void* map, int line, int row, int matrix, uint32_t bar) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], "
      "[%6], policy;\n}\n" ::"r"(to),
      "l"(map), "r"(0), "r"(line), "r"(row), "r"(matrix), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void tma_load_lines(uint32_t to, const void* map, int line, int row, int matrix, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(to),
      "l"(map), "r"(0), "r"(line), "r"(row), "r"(matrix), "r"(bar)
      : "memory");
}

}  // namespace k3::ops::cuda
