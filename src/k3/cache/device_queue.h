// Purpose:  what the cache needs of a device whose memory the host cannot touch: memory, and copies in the order of its steps.
// Shapes:   none.
// Units:    bytes.
// Memory:   what is allocated here lives as long as the queue.
// Threads:  one thread.
// Errors:   exhausted for memory; copy, fill, mark and wait: device_lost. Addresses are the caller's invariant.
// Source:   serving.md 3.4 (copies come before the step that reads them). Two kinds: a CUDA stream (cuda_queue.h), and in tests
//           memory that faults when it is touched (fake_device_test.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "k3/base/result.h"

namespace k3::cache {

class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  virtual Result<std::byte*> allocate(int64_t bytes) = 0;       // on the device, zeroed
  virtual Result<std::byte*> allocate_host(int64_t bytes) = 0;  // host memory that copies read and write while the host goes on

  // Queued: done in this order, after the steps that were queued before and ahead of those that come.
  virtual Status copy(void* to, const void* from, int64_t bytes) = 0;
  virtual Status fill(void* to, int value, int64_t bytes) = 0;
  virtual Status mark() = 0;  // the queue as it is now
  virtual Status wait() = 0;  // until all before the last mark is done
};

}  // namespace k3::cache
