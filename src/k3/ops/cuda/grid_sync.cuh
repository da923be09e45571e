// Internal to ops/cuda. How the blocks of one launch wait for each other: counters in device memory that are zero before and
// after (OpState::zeroed). A launch whose blocks wait like this has no more blocks than the device holds at once, and lets
// no dependent launch begin before all of them have: then those that run need nothing but kernels of before to end.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

// One thread of a block, after a barrier of those whose writes it speaks for.
__device__ __forceinline__ void grid_arrive(int32_t* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;\n" ::"l"(counter) : "memory");
}
// One thread; a barrier behind it passes on what it has seen.
__device__ __forceinline__ void grid_wait(const int32_t* counter, int arrivals) {
  int seen;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < arrivals);
}
// One thread of every block, when the block waits no more: the last clears `count` counters and `leavers`.
__device__ __forceinline__ void grid_leave(int32_t* counters, int count, int32_t* leavers) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;\n" : "=r"(before) : "l"(leavers) : "memory");
  if (before != static_cast<int>(gridDim.x) - 1) return;
  for (int i = 0; i < count; ++i) counters[i] = 0;
  *leavers = 0;
}

}  // namespace k3::ops::cuda
