// Internal to ops/cuda. Numbers in device memory by which blocks tell each other what is there.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

__device__ __forceinline__ int acquire_load(const int32_t* p) {
  int v;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ int add_both(int32_t* p, int value) {  // acquires and releases
  int old;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;\n" : "=r"(old) : "l"(p), "r"(value) : "memory");
  return old;
}
__device__ __forceinline__ void release_add(int32_t* p, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;\n" ::"l"(p), "r"(value) : "memory");
}

}  // namespace k3::ops::cuda
