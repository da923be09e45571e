// Purpose:  bytes of a checkpoint into the memory of a GPU, read and copied at the same time.
// Shapes:   none.
// Units:    bytes.
// Memory:   64 MiB of pinned buffers. Small parameters, which are widened and checked on the host, are left to the caller; large tensors go
//           from the file to their place in pieces and are never whole in host memory.
// Threads:  one thread calls. The pool belongs to the feeder while it lives: its workers read, and queue copies, from start() to the end,
//           so that a part that is queued before the one before it is done keeps them busy.
// Errors:   of wait(), once for all parts: those of reading; scale bytes that are none; those of the device.
// Source:   none.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "k3/base/threads.h"
#include "k3/model/weights.h"
#include "k3/model/wiring.h"
#include "k3/tensor/device.h"

namespace k3 {

class PinnedFeeder {
 public:
  static constexpr int64_t kPinnedBytes = int64_t{64} << 20;

  // total: of all parts, for `progress`, which a thread of the feeder calls. Copies are queued on `stream`.
  static Result<std::unique_ptr<PinnedFeeder>> start(Device device, ThreadPool& pool, Stream stream, const Checkpoint& checkpoint,
                                                     int64_t total, const LoadProgress& progress);
  ~PinnedFeeder();  // what no worker has begun stays undone
  PinnedFeeder(const PinnedFeeder&) = delete;
  PinnedFeeder& operator=(const PinnedFeeder&) = delete;

  // Queues a part: a job whose target is at `host` + x is to be copied to `device` + x, unless it is small. The jobs stay where they
  // are until the part is done. Returns its number.
  int64_t feed(const std::vector<ReadJob>& jobs, const std::byte* host, std::byte* device);
  // Until all copies of a part are on the stream (they need not have run) and its small jobs have their values.
  Status wait(int64_t part);
  // Left to the caller: its target has the value, finished, and nothing is copied.
  static bool is_small(const ReadJob& job) { return job.widen; }

  // What a copy from pinned memory reaches on this machine, in bytes a second.
  static Result<double> measure_copy(Device device, Stream stream);

 private:
  struct Piece {
    const ReadJob* job;
    int64_t part, group, begin, bytes;  // group: -1, a small job
    int64_t at;                         // in the group's buffer
  };
  struct Copy {
    std::byte* to;
    int64_t at, bytes;
  };
  // What is copied at a time: pieces of one part, as many as a buffer holds.
  struct Group {
    int64_t pieces = 0, left = 0;  // left: to be read
    std::vector<Copy> copies;
  };
  // Groups take the buffers in turn.
  struct Buffer {
    std::byte* memory = nullptr;
    EventHandle copied;
    int64_t groups = 0;  // whose copies have been queued from here
  };

  PinnedFeeder(Device device, ThreadPool& pool, Stream stream, const Checkpoint& checkpoint, int64_t total, const LoadProgress& progress)
      : device_(device), pool_(pool), stream_(stream), checkpoint_(checkpoint), total_(total), progress_(progress) {}
  Status pin();
  void add(const ReadJob& job, int64_t part, std::byte* to);
  void work(int index);
  // Both with the lock held before and after.
  Status make_small(const Piece& piece, std::unique_lock<std::mutex>& lock);
  Status bring(const Piece& piece, std::unique_lock<std::mutex>& lock);
  void end_pieces(int64_t part, int64_t count);
  Status read(const Piece& piece, std::byte* to) const;
  Status copy(const Group& group, Buffer& buffer);

  Device device_;
  ThreadPool& pool_;
  Stream stream_;
  const Checkpoint& checkpoint_;
  int64_t total_;
  const LoadProgress& progress_;
  Storage memory_;

  std::mutex mutex_;  // of what follows
  std::condition_variable news_, copy_queued_, part_done_;
  std::deque<Piece> pieces_;
  std::deque<Group> groups_;
  std::vector<Buffer> buffers_;
  std::vector<int64_t> left_;  // pieces of each part
  int64_t open_bytes_ = 0;     // of the last group
  int64_t done_bytes_ = 0;
  bool closed_ = false;
  Status error_;
  std::thread runner_;
};

}  // namespace k3
