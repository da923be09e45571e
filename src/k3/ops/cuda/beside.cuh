// Internal to ops/cuda. Blocks of two kernels share a multiprocessor only while its memory is divided as both want it, and the division
// changes only when it is idle: kernels that are to start beside others ask for as much shared memory as there is.
#pragma once

#include "k3/ops/cuda/launch.cuh"

namespace k3::ops::cuda {

template <class... Params, class... Args>
int launch_beside(void (*kernel)(Params...), const LaunchOptions& o, cudaStream_t stream, Args&&... args) {
  const cudaError_t error =
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return static_cast<int>(error);
  return launch(kernel, o, stream, static_cast<Args&&>(args)...);
}

}  // namespace k3::ops::cuda
