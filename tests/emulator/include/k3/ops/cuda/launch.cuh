// Internal to tests/emulator. Stands in front of src/k3/ops/cuda/launch.cuh.
#pragma once

#include "tests/emulator/emulator.h"

#define K3_SHARED_MEMORY(name) char* const name = k3::emulator::shared_memory()

namespace k3::ops::cuda {

struct LaunchOptions {
  dim3 grid, block;
  int shared_bytes = 0;
  int cluster = 1;
  bool dependent = false;
};

template <class... Params, class... Args>
int launch(void (*kernel)(Params...), const LaunchOptions& o, cudaStream_t, const Args&... args) {
  return k3::emulator::run(o.grid.x, static_cast<unsigned>(o.cluster), o.block.x, o.shared_bytes, [&] { kernel(args...); });
}

}  // namespace k3::ops::cuda
