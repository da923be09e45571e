// Purpose:  what every CUDA launcher shares: the stream type, the error a launch can have, facts about the device.
// Shapes:   none.
// Units:    bytes.
// Memory:   none is taken here. Launchers never allocate and never wait for the device, so every one can be captured in a graph.
// Threads:  any.
// Errors:   CudaStatus holds a cudaError_t; to_status() makes a Status of it: exhausted for memory, else device_lost.
// Source:   architecture 8. This header needs no CUDA header, so that argument checks and dispatch compile without the toolkit.
#pragma once

#include <cstdint>

#include "k3/base/result.h"

struct CUstream_st;

namespace k3::ops::cuda {

using Stream = CUstream_st*;  // cudaStream_t

struct [[nodiscard]] CudaStatus {
  int code = 0;  // cudaError_t
  bool ok() const { return code == 0; }
};

// "what: the runtime's text".
Status to_status(CudaStatus status, std::string_view what);

struct DeviceInfo {
  int sm_count = 0;
  int capability = 0;  // 90 for 9.0
  int64_t l2_bytes = 0, shared_bytes_per_block = 0, memory_bytes = 0;
};
// Of the current device; read once.
const DeviceInfo& device_info();
// Not Hopper: its kernels do not run there, plain ones do (x_plain_cuda.cu, kda_any, mla_any), to be right rather than fast.
bool plain_device();
// For tests: what device_info() answers from now on.
void pretend_device(const DeviceInfo& info);

}  // namespace k3::ops::cuda
