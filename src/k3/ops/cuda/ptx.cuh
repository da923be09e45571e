// Internal to ops/cuda. One function an instruction of PTX that CUDA C++ has no name for. sm_80: cp_async, mma, ldmatrix; the rest
// needs sm_90 (setmaxnreg and wgmma: sm_90a). A `uint32_t` address is one of the shared window (shared_address).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace k3::ops::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- asynchronous copies of 4, 8 or 16 bytes (sm_80) ----

template <int kBytes>
__device__ __forceinline__ void cp_async(uint32_t to, const void* from, bool take = true) {  // !take: zeros
  const int bytes = take ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(to), "l"(from), "n"(kBytes), "r"(bytes) : "memory");
  }
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft) : "memory");
}

// ---- warp matrices (sm_80) ----

// d += a b, a 16 x 16 row-major fragment, b 16 x 8 column-major fragment, FP32 d.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// 4 (2) matrices of 8 x 8 BF16; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n" : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&r)[4]) {  // sm_90
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}
// 8 x 8 transpose of BF16 across a warp.
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t x) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(out) : "r"(x));
  return out;
}

// ---- numbers ----

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&two);
}
__device__ __forceinline__ float low_bf16(uint32_t two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high_bf16(uint32_t two) { return __uint_as_float(two & 0xFFFF0000U); }
__device__ __forceinline__ float exp2_approx(float x) {  // 2 ulp; denormal results are flushed
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(out) : "f"(x));
  return out;
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int i = 16; i > 0; i >>= 1) x += __shfl_xor_sync(0xFFFFFFFFU, x, i);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int i = 16; i > 0; i >>= 1) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, i));
  return x;
}

// ---- barriers in shared memory (sm_90) ----

__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbar_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }
__device__ __forceinline__ void mbar_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_arrive_many(uint32_t bar, int count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_arrive_cluster(uint32_t bar, uint32_t rank) {  // of another block of the cluster
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(bar),
      "r"(rank)
      : "memory");
}
__device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes) {  // an arrival that also announces bytes
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nk3_wait:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra k3_done;\n"
      "bra k3_wait;\nk3_done:\n}\n" ::"r"(bar),
      "r"(parity)
      : "memory");
}
// cp.async of this thread so far arrive at the barrier when done.
__device__ __forceinline__ void cp_async_mbar_arrive(uint32_t bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(bar) : "memory");
}

// ---- bulk copies (sm_90) ----

// bytes: a multiple of 16; both addresses aligned to 16.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to), "l"(from),
               "r"(bytes), "r"(bar)
               : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void bulk_wait_read() {  // the sources in shared memory may be written again
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kLeft) : "memory");
}
template <int kLeft>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(kLeft) : "memory");
}
// Boxes of a tensor map (passed to the kernel by value as __grid_constant__); coordinates innermost first.
__device__ __forceinline__ void tma_load_2d(uint32_t to, const void* map, int x, int y, uint32_t bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\n" ::"r"(to),
               "l"(map), "r"(x), "r"(y), "r"(bar)
               : "memory");
}
__device__ __forceinline__ void tma_load_3d(uint32_t to, const void* map, int x, int y, int z, uint32_t bar) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];\n" ::"r"(
                   to),
               "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar)
               : "memory");
}
__device__ __forceinline__ void tma_store_2d(const void* map, uint32_t from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n" ::"l"(map), "r"(x), "r"(y), "r"(from)
               : "memory");
}
// Ordinary stores to shared memory become visible to the tensor cores (wgmma) and the copy engine.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// ---- warpgroups (sm_90a) ----

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kLeft) : "memory");
}
template <int kRegisters>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
// A subset of a block's threads (a multiple of 32) meets at barrier `id` (1..15; 0 is __syncthreads).
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// Swizzle of a shared-memory operand; the tile's rows are that many bytes wide and its base is aligned to 8 rows.
enum class Swizzle : uint64_t { none = 0, bytes_128 = 1, bytes_64 = 2, bytes_32 = 3 };
// leading, stride: bytes between core matrices along the contiguous and the other direction (PTX ISA, "Matrix descriptor").
// K-major with 128-byte swizzle: leading is ignored, stride = 1024 (8 rows of 128 bytes); a step of 16 BF16 along K adds 32 to the address.
__device__ __forceinline__ uint64_t make_desc(uint32_t address, uint32_t leading, uint32_t stride, Swizzle swizzle) {
  return static_cast<uint64_t>((address & 0x3FFFFU) >> 4) | static_cast<uint64_t>((leading & 0x3FFFFU) >> 4) << 16 |
         static_cast<uint64_t>((stride & 0x3FFFFU) >> 4) << 32 | static_cast<uint64_t>(swizzle) << 62;
}
// Byte offset of (row, byte) inside a tile of 128-byte rows as the 128-byte swizzle places it.
__device__ __forceinline__ uint32_t swizzle_128(uint32_t row, uint32_t byte) { return row * 128 + (byte ^ ((row & 7) << 4)); }

// ---- clusters and launches (sm_90) ----

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
__device__ __forceinline__ uint32_t cluster_map(uint32_t address, uint32_t rank) {  // the same place in another block
  uint32_t out;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(out) : "r"(address), "r"(rank));
  return out;
}
__device__ __forceinline__ float cluster_load(uint32_t address) {
  float out;
  asm volatile("ld.shared::cluster.f32 %0, [%1];\n" : "=f"(out) : "r"(address) : "memory");
  return out;
}
// As mbar_arrive_cluster, without a fence of the arriving thread's writes: "I have read", not "I have written".
__device__ __forceinline__ void mbar_arrive_cluster_relaxed(uint32_t bar, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nmbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(bar),
      "r"(rank)
      : "memory");
}
// The value of lane 0, in a form that the compiler knows to be the same in the whole warp: only then do descriptors and loop counters
// live in uniform registers.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xFFFFFFFFU, x, 0); }
// One load into the same place of every block named by `blocks` (a bit a rank), each of which is told by its own barrier.
__device__ __forceinline__ void tma_load_3d_multicast(uint32_t to, const void* map, int x, int y, int z, uint32_t bar, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], "
      "%6;\n" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "h"(blocks)
      : "memory");
}
// barrier.red.or: threads (a multiple of 32) meet at barrier `id`; did any bring true?
__device__ __forceinline__ bool named_barrier_any(int id, int threads, bool mine) {
  uint32_t out;
  asm volatile(
      "{\n.reg .pred mine, all;\nsetp.ne.b32 mine, %3, 0;\nbarrier.cta.red.or.pred all, %1, %2, mine;\nselp.u32 %0, 1, 0, all;\n}\n"
      : "=r"(out)
      : "r"(id), "r"(threads), "r"(static_cast<int>(mine))
      : "memory");
  return out != 0;
}
// Programmatic dependent launch: results of the kernel before are visible after pdl_wait; pdl_release lets the next one start.
__device__ __forceinline__ void pdl_wait() { asm volatile("griddepcontrol.wait;\n" ::: "memory"); }
__device__ __forceinline__ void pdl_release() { asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory"); }

// ---- more of clusters, warp matrices and caches ----

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void cluster_store(uint32_t address, float x) {  // address from cluster_map
  asm volatile("st.shared::cluster.f32 [%0], %1;\n" ::"r"(address), "f"(x) : "memory");
}
__device__ __forceinline__ void cluster_store(uint32_t address, uint32_t x) {
  asm volatile("st.shared::cluster.u32 [%0], %1;\n" ::"r"(address), "r"(x) : "memory");
}
// d += a b in TF32 (the low 13 bits of a and b are ignored), a 16 x 8 row-major fragment, b 8 x 8 column-major fragment.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
// d = a b
__device__ __forceinline__ void mma_tf32_from_zero(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])), "f"(0.0F));
}

// ---- loads of what is read once (weights): kept out of L1; !take: zeros ----

__device__ __forceinline__ uint4 load_once_16(const void* p, bool take = true) {
  uint4 v = {0, 0, 0, 0};
  asm volatile(
      "{\n.reg .pred take;\nsetp.ne.b32 take, %5, 0;\n@take ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(p), "r"(static_cast<int>(take)));
  return v;
}
__device__ __forceinline__ uint2 load_once_8(const void* p, bool take = true) {
  uint2 v = {0, 0};
  asm volatile(
      "{\n.reg .pred take;\nsetp.ne.b32 take, %3, 0;\n@take ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];\n}\n"
      : "+r"(v.x), "+r"(v.y)
      : "l"(p), "r"(static_cast<int>(take)));
  return v;
}
__device__ __forceinline__ uint32_t load_once_4(const void* p, bool take = true) {
  uint32_t v = 0;
  asm volatile("{\n.reg .pred take;\nsetp.ne.b32 take, %2, 0;\n@take ld.global.nc.L1::no_allocate.u32 %0, [%1];\n}\n"
               : "+r"(v)
               : "l"(p), "r"(static_cast<int>(take)));
  return v;
}
// 16 bytes of what a kernel before may have written (so not through the read-only path).
__device__ __forceinline__ uint4 load_16(const void* p, bool take = true) {
  uint4 v = {0, 0, 0, 0};
  asm volatile("{\n.reg .pred take;\nsetp.ne.b32 take, %5, 0;\n@take ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "l"(p), "r"(static_cast<int>(take))
               : "memory");
  return v;
}

__device__ __forceinline__ uint4 shared_load_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ uint32_t shared_load_4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ void shared_store_4(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void shared_store_16(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
// The compiler does not know that it is a copy, nor where it is made: zero is 0 to all but the compiler.
__device__ __forceinline__ uint32_t copy_here(uint32_t from, uint32_t zero) {
  uint32_t to;
  asm volatile("xor.b32 %0, %1, %2;\n" : "=r"(to) : "r"(from), "r"(zero));
  return to;
}
// Read again at each call, where there are no registers to keep it in.
__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread;
}

__device__ __forceinline__ float rcp_approx(float x) {  // 1 ulp; of infinity 0
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(out) : "f"(x));
  return out;
}

// 16 bytes to another block's shared memory (addresses by cluster_map), counted by its barrier; bytes of this block's likewise,
// from where ordinary stores were made visible by fence_async_proxy.
__device__ __forceinline__ void cluster_store_async(uint32_t to, float4 v, uint32_t bar) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n" ::"r"(to),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(bar)
               : "memory");
}
__device__ __forceinline__ void cluster_copy(uint32_t to, uint32_t from, uint32_t bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to), "r"(from),
               "r"(bytes), "r"(bar)
               : "memory");
}

// Read-only data that no thread of this launch writes.
__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 out;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "l"(p));
  return out;
}

// A store into a block of the cluster that counts its bytes at a barrier of that block; both addresses are of cluster_map.
// About half the time of a store and a barrier of the whole cluster. Only in launches with a cluster: elsewhere it is an
// illegal instruction.
__device__ __forceinline__ void cluster_send(uint32_t address, uint32_t bar, float value) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];\n" ::"r"(address), "f"(value),
               "r"(bar)
               : "memory");
}
__device__ __forceinline__ void cluster_send(uint32_t address, uint32_t bar, float x, float y) {  // aligned to 8
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];\n" ::"r"(address), "f"(x),
               "f"(y), "r"(bar)
               : "memory");
}

}  // namespace k3::ops::cuda
