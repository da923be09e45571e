// Internal to tests/emulator. Stands in front of src/k3/ops/cuda/ptx.cuh: the words that the kernels of the tests use, with
// what they mean on the emulated machine. What they do is told there.
#pragma once

#include <cuda_bf16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace k3::ops::cuda {

uint32_t shared_address(const void* p);

// ---- matrices, products of a warp ----

void ldmatrix_x4(uint32_t (&r)[4], uint32_t address);
void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address);
void ldmatrix_x2(uint32_t (&r)[2], uint32_t address);
void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t address);
void stmatrix_x4(uint32_t address, const uint32_t (&r)[4]);
void stmatrix_x4_trans(uint32_t address, const uint32_t (&r)[4]);
uint32_t movmatrix_trans(uint32_t x);
void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void mma_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]);
void mma_tf32_from_zero(float (&d)[4], const float (&a)[4], const float (&b)[2]);

// ---- numbers ----

inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  uint32_t out = 0;
  std::memcpy(&out, &two, 4);
  return out;
}
inline float low_bf16(uint32_t two) { return std::bit_cast<float>(two << 16); }
inline float high_bf16(uint32_t two) { return std::bit_cast<float>(two & 0xFFFF0000U); }
inline float exp2_approx(float x) { return exp2f(x); }
inline float rcp_approx(float x) { return 1 / x; }
template <class Take>
float warp_fold(float x, const Take& take) {
  for (int i = 16; i > 0; i >>= 1) x = take(x, __shfl_xor_sync(0xFFFFFFFFU, x, i));
  return x;
}
inline float warp_sum(float x) {
  return warp_fold(x, [](float a, float b) { return a + b; });
}
inline float warp_max(float x) { return warp_fold(x, fmaxf); }
inline int uniform(int x) { return __shfl_sync(0xFFFFFFFFU, x, 0); }
inline uint32_t copy_here(uint32_t from, uint32_t) { return from; }
inline int thread_again() { return static_cast<int>(threadIdx.x); }

// ---- barriers ----

void mbar_init(uint32_t bar, uint32_t arrivals);
inline void mbar_init_fence() {}
void mbar_arrive(uint32_t bar);
void mbar_arrive_many(uint32_t bar, int count);
void mbar_arrive_cluster(uint32_t bar, uint32_t rank);
inline void mbar_arrive_cluster_relaxed(uint32_t bar, uint32_t rank) { mbar_arrive_cluster(bar, rank); }
void mbar_expect(uint32_t bar, uint32_t bytes);
void mbar_wait(uint32_t bar, uint32_t parity);
void named_barrier(int id, int threads);
void named_barrier_arrive(int id, int threads);
bool named_barrier_any(int id, int threads, bool mine);
void cluster_sync();
void cluster_arrive();
void cluster_wait();
uint32_t cluster_rank();

// ---- copies ----

void copy_async(uint32_t to, const void* from, uint32_t bytes, bool take);
template <int kBytes>
void cp_async(uint32_t to, const void* from, bool take = true) {
  copy_async(to, from, kBytes, take);
}
void cp_async_commit();
void wait_for_loads(int groups_left);
template <int kLeft>
void cp_async_wait() {
  wait_for_loads(kLeft);
}
void cp_async_mbar_arrive(uint32_t bar);
void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t bar);
void bulk_store(void* to, uint32_t from, uint32_t bytes);
void bulk_commit();
void wait_for_stores(int groups_left);
template <int kLeft>
void bulk_wait_read() {
  wait_for_stores(kLeft);
}
template <int kLeft>
void bulk_wait() {
  wait_for_stores(kLeft);
}
void tma_load_2d(uint32_t to, const void* map, int x, int y, uint32_t bar);
void tma_load_3d(uint32_t to, const void* map, int x, int y, int z, uint32_t bar);
void tma_load_3d_multicast(uint32_t to, const void* map, int x, int y, int z, uint32_t bar, uint16_t blocks);
void tma_store_2d(const void* map, uint32_t from, int x, int y);
void cluster_copy(uint32_t to, uint32_t from, uint32_t bytes, uint32_t bar);
uint32_t cluster_map(uint32_t address, uint32_t rank);
float cluster_load(uint32_t address);
void cluster_store(uint32_t address, float x);
void cluster_store(uint32_t address, uint32_t x);
void send(uint32_t to, uint32_t bar, const void* from, uint32_t bytes);
inline void cluster_send(uint32_t address, uint32_t bar, float value) { send(address, bar, &value, 4); }
inline void cluster_send(uint32_t address, uint32_t bar, float x, float y) {
  const float both[2] = {x, y};
  send(address, bar, both, 8);
}
inline void cluster_store_async(uint32_t to, float4 v, uint32_t bar) { send(to, bar, &v, 16); }
inline void fence_async_proxy() {}

// ---- memory ----

char* shared_at(uint32_t address, uint32_t bytes);  // as the thread's own loads and stores find it
template <class T>
T shared_load(uint32_t address) {
  T out;
  std::memcpy(&out, shared_at(address, sizeof out), sizeof out);
  return out;
}
inline uint4 shared_load_16(uint32_t address) { return shared_load<uint4>(address); }
inline uint32_t shared_load_4(uint32_t address) { return shared_load<uint32_t>(address); }
inline void shared_store_4(uint32_t address, uint32_t v) { std::memcpy(shared_at(address, sizeof v), &v, sizeof v); }
inline void shared_store_16(uint32_t address, const uint4& v) { std::memcpy(shared_at(address, sizeof v), &v, sizeof v); }
template <class T>
T load_if(const void* p, bool take) {
  T out = {};
  if (take) std::memcpy(&out, p, sizeof out);
  return out;
}
inline uint4 load_once_16(const void* p, bool take = true) { return load_if<uint4>(p, take); }
inline uint2 load_once_8(const void* p, bool take = true) { return load_if<uint2>(p, take); }
inline uint32_t load_once_4(const void* p, bool take = true) { return load_if<uint32_t>(p, take); }
inline uint4 load_once(const void* p) { return load_if<uint4>(p, true); }
inline uint4 load_16(const void* p, bool take = true) { return load_if<uint4>(p, take); }

// ---- warpgroups ----

void wgmma_fence();
void wgmma_commit();
void wait_for_products(int groups_left);
template <int kLeft>
void wgmma_wait() {
  wait_for_products(kLeft);
}
template <int kRegisters>
void more_registers() {}
template <int kRegisters>
void fewer_registers() {}

enum class Swizzle : uint64_t { none = 0, bytes_128 = 1, bytes_64 = 2, bytes_32 = 3 };
inline uint64_t make_desc(uint32_t address, uint32_t leading, uint32_t stride, Swizzle swizzle) {
  return static_cast<uint64_t>((address & 0x3FFFFU) >> 4) | static_cast<uint64_t>((leading & 0x3FFFFU) >> 4) << 16 |
         static_cast<uint64_t>((stride & 0x3FFFFU) >> 4) << 32 | static_cast<uint64_t>(swizzle) << 62;
}
// The swizzle of 128 bytes is one of addresses.
constexpr uint32_t swizzled(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }
constexpr uint32_t swizzle_128(uint32_t row, uint32_t byte) { return row * 128 + (byte ^ ((row & 7) << 4)); }

void pdl_wait();
inline void pdl_release() {}

}  // namespace k3::ops::cuda
