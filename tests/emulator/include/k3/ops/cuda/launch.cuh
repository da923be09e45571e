// Internal to tests/emulator. Stands in front of src/k3/ops/cuda/launch.cuh.
#pragma once

#include "tests/emulator/emulator.h"

#define K3_SHARED_MEMORY(name) char* const name = k3::emulator::shared_memory()
#define K3_SHARED_BYTES(name, alignment) auto* const name = reinterpret_cast<uint8_t*>(k3::emulator::shared_memory())
#define K3_SHARED_ARRAY(type, name) auto* const name = reinterpret_cast<type*>(k3::emulator::shared_memory())

namespace k3::ops::cuda {

inline int launch_code() { return 0; }

struct LaunchOptions {
  dim3 grid, block;
  int shared_bytes = 0;
  int cluster = 1;
  bool dependent = false;
};

template <class... Params, class... Args>
int launch(void (*kernel)(Params...), const LaunchOptions& o, cudaStream_t, const Args&... args) {
  const auto index = [](const dim3& d) { return k3::emulator::Index{d.x, d.y, d.z}; };
  return k3::emulator::run({index(o.grid), index(o.block), static_cast<unsigned>(o.cluster), o.shared_bytes},
                           [&] { kernel(args...); });
}

}  // namespace k3::ops::cuda
