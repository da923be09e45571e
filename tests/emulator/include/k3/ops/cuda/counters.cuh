// Internal to tests/emulator. Stands in front of src/k3/ops/cuda/counters.cuh.
#pragma once

#include <cstdint>

#include "tests/emulator/emulator.h"

namespace k3::ops::cuda {

inline int acquire_load(const int32_t* p) {
  emulator::look_again();
  return *p;
}
inline int add_both(int32_t* p, int value) { return atomicAdd(p, value); }
inline void release_add(int32_t* p, int value) { atomicAdd(p, value); }

}  // namespace k3::ops::cuda
