// Internal to ops/kda. Instructions of the prefill kernels.
#pragma once

#include <cstdint>

namespace k3::ops::cuda {

__device__ __forceinline__ void mma16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                      uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma16_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// As mbar_wait, asleep in between: a spinning warp takes issue slots from those it waits for.
__device__ __forceinline__ void mbar_sleep(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nk3_wait:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n@done bra k3_done;\n"
      "bra k3_wait;\nk3_done:\n}\n" ::"r"(bar),
      "r"(parity), "r"(10'000'000)
      : "memory");
}
// Arrivals at a barrier of the other block of the pair, one with bytes announced, and a copy of shared memory to there.
// Relaxed: what is sent comes with the copy, and a consumer only says that it has read; a release would wait for its outputs
// to reach memory.
__device__ __forceinline__ void mbar_arrive_there(uint32_t bar) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_expect_there(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_send(uint32_t to, uint32_t from, uint32_t bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
               "r"(from), "r"(bytes), "r"(bar)
               : "memory");
}
__device__ __forceinline__ uint32_t pack_half(float low, float high) {
  uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ __forceinline__ void load_shared(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_shared(float (&r)[4], uint32_t address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, const float (&r)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "f"(r[0]), "f"(r[1]), "f"(r[2]), "f"(r[3])
               : "memory");
}
__device__ __forceinline__ void store_shared_two(uint32_t address, float x, float y) {  // y 8 bytes behind x
  asm volatile("st.shared.f32 [%0], %1;\nst.shared.f32 [%0 + 8], %2;\n" ::"r"(address), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b) {  // NaN where either is
  uint32_t out;
  asm("max.NaN.f16x2 %0, %1, %2;\n" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
// Read anew: what follows from it costs less than registers that keep it from chunk to chunk.
__device__ __forceinline__ int lane_here() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;\n" : "=r"(lane));
  return lane;
}
// Accumulators are what they should be only after the wait: nothing that reads them moves before it.
template <int kCount>
__device__ __forceinline__ void settle(float (&x)[kCount]) {
#pragma unroll
  for (float& f : x) asm volatile("" : "+f"(f)::"memory");
}

__device__ __forceinline__ uint32_t tf32(float x) {
  uint32_t out;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(out) : "f"(x));
  return out;
}
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace k3::ops::cuda
