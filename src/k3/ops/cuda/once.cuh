// Internal to ops/cuda. Loads of weights that pass once a step: they leave L2 first, so that activations, states and the code of
// kernels stay there while gigabytes go through.
#pragma once

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

__device__ __forceinline__ uint64_t once_policy(bool once = true) {
  uint64_t first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;\n" : "=l"(normal));
  return once ? first : normal;
}

// 16 bytes; !take: zeros.
__device__ __forceinline__ void cp_async_once(uint32_t to, const void* from, bool take, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;\n" ::"r"(to), "l"(from), "r"(take ? 16 : 0), "l"(policy)
               : "memory");
}

__device__ __forceinline__ void bulk_load_once(uint32_t to, const void* from, uint32_t bytes, uint32_t bar, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar), "l"(policy)
      : "memory");
}

}  // namespace k3::ops::cuda
