// Internal to ops/kda. Instructions of the verify kernels.
#pragma once

namespace k3::ops::cuda {

// The product itself would cut the lower bits off.
__device__ __forceinline__ float tf32_nearest(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}
// Keeps the compiler from deriving an address anew at each use.
template <class T>
__device__ __forceinline__ T* hold(T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

}  // namespace k3::ops::cuda
