#include "k3/ops/cuda/launch.h"

#include <cuda_runtime_api.h>

namespace k3::ops::cuda {

Status to_status(CudaStatus status, std::string_view what) {
  if (status.ok()) return {};
  const auto error = static_cast<cudaError_t>(status.code);
  const Code code = error == cudaErrorMemoryAllocation ? Code::exhausted : Code::device_lost;
  return fail(code, "{}: {} (cudaError {})", what, cudaGetErrorString(error), status.code);
}

namespace {

DeviceInfo& known_device() {
  static DeviceInfo info = [] {
    DeviceInfo out;
    int device = 0;
    cudaDeviceProp properties{};
    if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess) return out;
    out.sm_count = properties.multiProcessorCount;
    out.capability = properties.major * 10 + properties.minor;
    out.l2_bytes = properties.l2CacheSize;
    out.shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
    out.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    return out;
  }();
  return info;
}

}  // namespace

const DeviceInfo& device_info() { return known_device(); }
bool plain_device() { return device_info().capability / 10 != 9; }
void pretend_device(const DeviceInfo& info) { known_device() = info; }

}  // namespace k3::ops::cuda
