// Internal to tests/emulator. Stands in front of src/k3/ops/cuda/beside.cuh.
#pragma once

#include "k3/ops/cuda/launch.cuh"

namespace k3::ops::cuda {

template <class... Params, class... Args>
int launch_beside(void (*kernel)(Params...), const LaunchOptions& o, cudaStream_t stream, const Args&... args) {
  return launch(kernel, o, stream, args...);
}

}  // namespace k3::ops::cuda
