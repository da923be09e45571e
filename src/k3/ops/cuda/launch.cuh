// Internal to ops/cuda. For .cu files: launching with attributes and raising shared-memory limits. launch.h without its Result.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// A block's dynamic shared memory. A macro because tests/emulator has another meaning for it.
#define K3_SHARED_MEMORY(name) extern __shared__ __align__(1024) char name[]
#define K3_SHARED_BYTES(name, alignment) extern __shared__ __align__(alignment) uint8_t name[]
#define K3_SHARED_ARRAY(type, name) extern __shared__ type name[]

namespace k3::ops::cuda {

// The status a launcher returns: its arguments were fine, did the launch itself work?
inline int launch_code() { return static_cast<int>(cudaGetLastError()); }

struct LaunchOptions {
  dim3 grid, block;
  int shared_bytes = 0;
  int cluster = 1;         // blocks of grid.x a cluster
  bool dependent = false;  // programmatic dependent launch: the kernel calls pdl_wait() before it reads what others wrote
};

// Raises the kernel's limit of dynamic shared memory when it needs more than 48 KiB (cheap; idempotent).
template <class... Params, class... Args>
int launch(void (*kernel)(Params...), const LaunchOptions& o, cudaStream_t stream, Args&&... args) {
  if (o.shared_bytes > 48 << 10) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, o.shared_bytes);
    if (error != cudaSuccess) return static_cast<int>(error);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = o.grid;
  config.blockDim = o.block;
  config.dynamicSmemBytes = static_cast<size_t>(o.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (o.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim = {static_cast<unsigned>(o.cluster), 1, 1};
    ++count;
  }
  if (o.dependent) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  config.attrs = attributes;
  config.numAttrs = count;
  return static_cast<int>(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

}  // namespace k3::ops::cuda
