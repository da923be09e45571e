#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "k3/base/units.h"
#include "k3/tensor/device.h"

namespace k3 {
namespace {

Status status_of(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // errors that are not sticky stay with this call
  const Code code = error == cudaErrorMemoryAllocation ? Code::exhausted : Code::device_lost;
  return fail(code, "{}: {}", what, cudaGetErrorString(error));
}

// Makes a device current for a scope.
class Current {
 public:
  explicit Current(const Device& device) {
    cudaGetDevice(&before_);
    if (device.index != before_) cudaSetDevice(device.index);
  }
  ~Current() { cudaSetDevice(before_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
};

Status usable(const Device& device) {
  if (device.kind != Device::Kind::cuda) return fail(Code::unsupported, "{} has no device memory", device.text());
  const int count = cuda_device_count();
  if (device.index >= count) return fail(Code::unavailable, "{}: this machine has {} CUDA devices", device.text(), count);
  return {};
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

Result<DeviceMemory> device_memory(const Device& device) {
  K3_TRY(usable(device));
  const Current current(device);
  size_t free = 0, total = 0;
  K3_TRY(status_of(cudaMemGetInfo(&free, &total), device.text()));
  return DeviceMemory{static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

void DeviceStorage::Free::operator()(std::byte* p) const { cudaFree(p); }

Result<DeviceStorage> DeviceStorage::allocate(const Device& device, int64_t bytes) {
  K3_CHECK(bytes >= 0, "{} bytes", bytes);
  K3_TRY(usable(device));
  DeviceStorage out;
  out.device_ = device;
  out.size_bytes_ = bytes;
  if (bytes == 0) return out;
  const Current current(device);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    K3_TRY_ASSIGN(const DeviceMemory memory, device_memory(device));
    return fail(Code::exhausted, "{}: {} asked for, {} of {} free", device.text(), format_bytes(bytes),
                format_bytes(memory.free_bytes), format_bytes(memory.total_bytes));
  }
  K3_TRY(status_of(error, device.text()));
  out.data_.reset(static_cast<std::byte*>(data));
  return out;
}

void PinnedStorage::Free::operator()(std::byte* p) const { cudaFreeHost(p); }

Result<PinnedStorage> PinnedStorage::allocate(int64_t bytes) {
  K3_CHECK(bytes >= 0, "{} bytes", bytes);
  K3_TRY(usable({Device::Kind::cuda, 0}));
  PinnedStorage out;
  out.size_bytes_ = bytes;
  if (bytes == 0) return out;
  void* data = nullptr;
  const cudaError_t error = cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable);
  K3_TRY(status_of(error, fmt::format("pinning {} of host memory", format_bytes(bytes))));
  out.data_.reset(static_cast<std::byte*>(data));
  return out;
}

void StreamHandle::Free::operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }

Result<StreamHandle> StreamHandle::create(const Device& device) {
  K3_TRY(usable(device));
  const Current current(device);
  cudaStream_t stream = nullptr;
  K3_TRY(status_of(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), device.text()));
  StreamHandle out;
  out.device_ = device;
  out.stream_.reset(stream);
  return out;
}

Status StreamHandle::synchronize() const { return status_of(cudaStreamSynchronize(get()), device_.text()); }
Status StreamHandle::wait(const Event& event) const {
  return status_of(cudaStreamWaitEvent(get(), event.get(), 0), device_.text());
}

void Event::Free::operator()(CUevent_st* event) const { cudaEventDestroy(event); }

Result<Event> Event::create(const Device& device) {
  K3_TRY(usable(device));
  const Current current(device);
  cudaEvent_t event = nullptr;
  K3_TRY(status_of(cudaEventCreate(&event), device.text()));
  Event out;
  out.event_.reset(event);
  return out;
}

Status Event::record(const StreamHandle& stream) const { return status_of(cudaEventRecord(get(), stream.get()), "event"); }

Result<bool> Event::done() const {
  const cudaError_t error = cudaEventQuery(get());
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  K3_TRY(status_of(error, "event"));
  return true;
}

Status Event::synchronize() const { return status_of(cudaEventSynchronize(get()), "event"); }

Result<double> Event::seconds_since(const Event& begin) const {
  float ms = 0;
  K3_TRY(status_of(cudaEventElapsedTime(&ms, begin.get(), get()), "event"));
  return static_cast<double>(ms) * 1e-3;
}

Status copy_async(void* to, const void* from, int64_t bytes, const StreamHandle& stream) {
  return status_of(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream.get()), "copy");
}

Result<CopyRates> measure_pinned_copies(const Device& device, int64_t bytes) {
  K3_CHECK(bytes > 0, "{} bytes", bytes);
  K3_TRY_ASSIGN(const DeviceStorage on_device, DeviceStorage::allocate(device, bytes));
  K3_TRY_ASSIGN(const PinnedStorage on_host, PinnedStorage::allocate(bytes));
  std::memset(on_host.data(), 1, static_cast<size_t>(bytes));
  K3_TRY_ASSIGN(const StreamHandle stream, StreamHandle::create(device));
  K3_TRY_ASSIGN(const Event begin, Event::create(device));
  K3_TRY_ASSIGN(const Event end, Event::create(device));
  const auto rate = [&](void* to, const void* from) -> Result<double> {
    double best = 0;
    for (int i = 0; i < 4; ++i) {  // the first warms up
      K3_TRY(begin.record(stream));
      K3_TRY(copy_async(to, from, bytes, stream));
      K3_TRY(end.record(stream));
      K3_TRY(end.synchronize());
      K3_TRY_ASSIGN(const double seconds, end.seconds_since(begin));
      if (i > 0 && seconds > 0) best = std::max(best, static_cast<double>(bytes) / seconds * 1e-9);
    }
    return best;
  };
  CopyRates out;
  K3_TRY_ASSIGN(out.to_device_gbps, rate(on_device.data(), on_host.data()));
  K3_TRY_ASSIGN(out.to_host_gbps, rate(on_host.data(), on_device.data()));
  return out;
}

}  // namespace k3
