// Purpose:  the queue of a GPU: its memory, copies on a stream.
// Shapes:   none.
// Units:    bytes.
// Memory:   device memory and pinned host memory, freed with the queue.
// Threads:  one at a time. The device need not be the current one of the thread except in create, allocate and allocate_host.
// Errors:   create: those of tensor/device.h.
// Source:   device_queue.h.
#pragma once

#include <memory>
#include <vector>

#include "k3/cache/device_queue.h"
#include "k3/tensor/tensor.h"

namespace k3::cache {

class CudaQueue final : public DeviceQueue {
 public:
  static Result<std::shared_ptr<CudaQueue>> create(Device device);

  // From now on everything is queued on the stream of the steps, behind what was queued so far. The stream must outlive the last use.
  Status follow(Stream stream);

  Result<std::byte*> allocate(int64_t bytes) override;
  Result<std::byte*> allocate_host(int64_t bytes) override;
  Status copy(void* to, const void* from, int64_t bytes) override { return copy_async(to, from, bytes, stream_); }
  Status fill(void* to, int value, int64_t bytes) override { return fill_async(to, value, bytes, stream_); }
  Status mark() override { return record(marked_, stream_); }
  Status wait() override { return wait_for(marked_); }

 private:
  explicit CudaQueue(Device device) : device_(device) {}

  Device device_;
  StreamHandle own_;
  EventHandle marked_;
  Stream stream_ = nullptr;
  std::vector<Storage> memory_;
};

}  // namespace k3::cache
