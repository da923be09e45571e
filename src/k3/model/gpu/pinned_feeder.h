// Purpose:  bytes of a checkpoint into the memory of a GPU, read and copied at the same time.
// Shapes:   none.
// Units:    bytes.
// Memory:   two pinned buffers a worker of the pool, of 16 at most. Small parameters, which are widened and checked on the host, are left to the
//           caller; large tensors go from the file to their place in pieces and are never whole in host memory.
// Threads:  one thread calls; the pool's workers read, and queue copies on one stream.
// Errors:   those of reading; scale bytes that are none; those of the device.
// Source:   none.
#pragma once

#include <atomic>
#include <vector>

#include "k3/base/threads.h"
#include "k3/model/weights.h"
#include "k3/model/wiring.h"
#include "k3/tensor/device.h"

namespace k3 {

class PinnedFeeder {
 public:
  static Result<PinnedFeeder> create(Device device, ThreadPool& pool, Stream stream);

  // A job whose target is at `host` + x is queued to be copied to `device` + x, unless it is small: then its target has the value
  // when feed returns, finished, and nothing is copied. Later work on the stream sees the large ones.
  Status feed(const Checkpoint& checkpoint, const std::vector<ReadJob>& jobs, const std::byte* host, std::byte* device,
              std::atomic<int64_t>& done, int64_t total, const LoadProgress& progress);
  static bool is_small(const ReadJob& job) { return job.widen; }

  // What a copy from pinned memory reaches on this machine, in bytes a second.
  Result<double> measure_copy();

 private:
  struct Slot {
    std::byte* memory = nullptr;
    EventHandle copied;
    bool in_use = false;
  };
  struct Worker {
    Slot slots[2];
    size_t turn = 0;
  };
  struct Piece {
    const ReadJob* job;
    int64_t begin, bytes;
  };
  Status bring(const Checkpoint& checkpoint, const Piece& piece, Worker& worker, const std::byte* host, std::byte* device);

  Device device_;
  ThreadPool* pool_ = nullptr;
  Stream stream_ = nullptr;
  Storage memory_;
  std::vector<Worker> workers_;
};

}  // namespace k3
