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
#undef __launch_bounds__
#undef __grid_constant__
#define __device__
#define __global__
#define __shared__ static  // blocks without a cluster run one after another
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (k3::emulator::here().thread)
#define blockIdx (k3::emulator::here().block)
#define blockDim (k3::emulator::here().threads)
#define gridDim (k3::emulator::here().blocks)

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
inline int __popc(unsigned x) { return std::popcount(x); }
