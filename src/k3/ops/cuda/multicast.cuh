// Internal to ops/cuda. Copies into the same place of both blocks of a pair, each of which is told by its own barrier; and a
// wait for what the other block wrote.
#pragma once

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

__device__ __forceinline__ void bulk_load_both(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  asm volatile(
      "{\n.reg .b16 both;\nmov.b16 both, 3;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "both;\n}\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void tma_load_lines_both(uint32_t to, const void* map, int line, int row, int matrix,
                                                    uint32_t bar) {
  asm volatile(
      "{\n.reg .b16 both;\nmov.b16 both, 3;\n"
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, "
      "%4, %5}], "
      "[%6], both;\n}\n" ::"r"(to),
      "l"(map), "r"(0), "r"(line), "r"(row), "r"(matrix), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void tma_load_2d_both(uint32_t to, const void* map, int x, int y, uint32_t bar) {
  asm volatile(
      "{\n.reg .b16 both;\nmov.b16 both, 3;\n"
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], "
      "[%4], "
      "both;\n}\n" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(bar)
      : "memory");
}
// Sees what another block wrote before it arrived; throws the L1 cache away.
__device__ __forceinline__ void mbar_wait_cluster(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nk3_wait:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@done bra "
      "k3_done;\n"
      "bra k3_wait;\nk3_done:\n}\n" ::"r"(bar),
      "r"(parity)
      : "memory");
}

}  // namespace k3::ops::cuda
