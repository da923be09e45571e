// Internal to ops/gemm. Instructions of the kernel of one token.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

__device__ __forceinline__ void prefetch_l2(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from), "r"(bytes) : "memory");
}

}  // namespace k3::ops::cuda
