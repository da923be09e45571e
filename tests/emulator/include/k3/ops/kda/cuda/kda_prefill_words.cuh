// Internal to tests/emulator. Stands in front of src/k3/ops/kda/cuda/kda_prefill_words.cuh.
#pragma once

#include <cuda_fp16.h>

#include "k3/ops/cuda/ptx.cuh"

namespace k3::ops::cuda {

inline void mma16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  mma_bf16(d, {a0, a1, a2, a3}, {b0, b1});
}
void mma_half(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
inline void mma16_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma_half(d, a, {b0, b1}); }
inline void mbar_sleep(uint32_t bar, uint32_t parity) { mbar_wait(bar, parity); }
void mbar_arrive_there(uint32_t bar);
inline void mbar_expect_there(uint32_t bar, uint32_t bytes) { mbar_expect(bar, bytes); }
inline void bulk_send(uint32_t to, uint32_t from, uint32_t bytes, uint32_t bar) { cluster_copy(to, from, bytes, bar); }
inline uint32_t pack_half(float low, float high) {
  return std::bit_cast<uint16_t>(__float2half_rn(low)) |
         static_cast<uint32_t>(std::bit_cast<uint16_t>(__float2half_rn(high))) << 16;
}
inline float half_of(uint32_t two, int which) {
  return __half2float(std::bit_cast<__half>(static_cast<uint16_t>(two >> (16 * which))));
}
inline uint32_t larger_halves(uint32_t a, uint32_t b) {
  const auto larger = [](float x, float y) { return std::isnan(x) || x > y ? x : y; };
  return pack_half(larger(half_of(a, 0), half_of(b, 0)), larger(half_of(a, 1), half_of(b, 1)));
}
template <class T>
void load_shared(T (&r)[4], uint32_t address) {
  std::memcpy(r, shared_at(address, 16), 16);
}
template <class T>
void store_shared(uint32_t address, const T (&r)[4]) {
  std::memcpy(shared_at(address, 16), r, 16);
}
inline void store_shared_two(uint32_t address, float x, float y) {
  std::memcpy(shared_at(address, 4), &x, 4);
  std::memcpy(shared_at(address + 8, 4), &y, 4);
}
inline int lane_here() { return static_cast<int>(threadIdx.x) % 32; }
template <int kCount>
void settle(float (&)[kCount]) {}
inline uint32_t tf32(float x) { return (std::bit_cast<uint32_t>(x) + 0x1000) & 0xFFFFE000U; }
inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto f = [](uint32_t x) { return std::bit_cast<float>(x); };
  mma_tf32(d, {f(a[0]), f(a[1]), f(a[2]), f(a[3])}, {f(b0), f(b1)});
}

}  // namespace k3::ops::cuda
