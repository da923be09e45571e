// Internal to tests/emulator. Included in front of a kernel's file: CUDA C++ for an ordinary compiler.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/emulator/emulator.h"

#undef __device__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __device__
#define __global__
#define __shared__ static thread_local  // the machine gives each block its own
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (k3::emulator::here().thread)
#define blockIdx (k3::emulator::here().block)
#define blockDim (k3::emulator::here().threads)
#define gridDim (k3::emulator::here().blocks)

using std::isnan;
using std::max;
using std::min;

inline void __syncthreads() { k3::emulator::block_sync(); }
inline void __syncwarp() {
  uint64_t all[32];
  k3::emulator::warp_exchange(0, all);
}
[[noreturn]] inline void __trap() { k3::emulator::trap(); }

template <class T>
T emulated_shuffle(T mine, uint64_t (*from)(uint64_t lane, uint64_t by), int by) {
  uint64_t all[32], bits = 0;
  std::memcpy(&bits, &mine, sizeof mine);
  const uint64_t lane = k3::emulator::warp_exchange(bits, all);
  std::memcpy(&mine, &all[from(lane, static_cast<uint64_t>(by))], sizeof mine);
  return mine;
}
template <class T>
T __shfl_sync(unsigned, T mine, int lane) {
  return emulated_shuffle(
      mine, [](uint64_t, uint64_t by) { return by % 32; }, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T mine, int mask) {
  return emulated_shuffle(
      mine, [](uint64_t lane, uint64_t by) { return lane ^ by; }, mask);
}
template <class T>
T __shfl_up_sync(unsigned, T mine, int by) {
  return emulated_shuffle(
      mine, [](uint64_t lane, uint64_t by_) { return lane >= by_ ? lane - by_ : lane; }, by);
}
inline unsigned __ballot_sync(unsigned, bool mine) {
  uint64_t all[32];
  k3::emulator::warp_exchange(mine ? 1 : 0, all);
  unsigned out = 0;
  for (unsigned i = 0; i < 32; ++i) out |= static_cast<unsigned>(all[i]) << i;
  return out;
}
inline int __any_sync(unsigned mask, bool mine) { return __ballot_sync(mask, mine) != 0 ? 1 : 0; }
template <class T>
T __shfl_down_sync(unsigned, T mine, int by) {
  return emulated_shuffle(
      mine, [](uint64_t lane, uint64_t by_) { return lane + by_ < 32 ? lane + by_ : lane; }, by);
}
template <class T, class Take>
T emulated_reduce(T mine, const Take& take) {
  for (int i = 16; i > 0; i >>= 1) mine = take(mine, __shfl_xor_sync(~0U, mine, i));
  return mine;
}
inline unsigned __reduce_max_sync(unsigned, unsigned mine) {
  return emulated_reduce(mine, [](unsigned a, unsigned b) { return std::max(a, b); });
}
inline unsigned __reduce_min_sync(unsigned, unsigned mine) {
  return emulated_reduce(mine, [](unsigned a, unsigned b) { return std::min(a, b); });
}
template <class T>
unsigned __match_any_sync(unsigned, T mine) {
  uint64_t all[32], bits = 0;
  std::memcpy(&bits, &mine, sizeof mine);
  k3::emulator::warp_exchange(bits, all);
  unsigned out = 0;
  for (unsigned i = 0; i < 32; ++i) out |= static_cast<unsigned>(all[i] == bits) << i;
  return out;
}

// Numbers.
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float emulated_exp(float x) { return std::exp(x); }
inline float emulated_log2(float x) { return std::log2(x); }
#define __expf emulated_exp  // glibc has one of that name
#define __log2f emulated_log2
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned out = 0;
  for (unsigned i = 0; i < 4; ++i) out |= static_cast<unsigned>(bytes >> (8 * (which >> (4 * i) & 7)) & 0xFF) << (8 * i);
  return out;
}

// Memory.
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T x) {
  *p = x;
}
template <class T, class Change>
T emulated_atomic(T* p, const Change& change) {
  const T before = *p;
  *p = change(before);
  k3::emulator::something_happened();
  return before;
}
template <class T>
T atomicAdd(T* p, T by) {
  return emulated_atomic(p, [by](T x) { return x + by; });
}
template <class T>
T atomicOr(T* p, T with) {
  return emulated_atomic(p, [with](T x) { return x | with; });
}
template <class T>
T atomicMax(T* p, T with) {
  return emulated_atomic(p, [with](T x) { return std::max(x, with); });
}
inline unsigned atomicInc(unsigned* p, unsigned most) {
  return emulated_atomic(p, [most](unsigned x) { return x >= most ? 0 : x + 1; });
}
