// Internal to base. The queue of pieces of a DiskReader and what both ways of reading share. A request is cut into pieces
// of whole disk blocks; pieces of urgent requests are taken first.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "k3/base/disk_reader.h"

namespace k3::disk {

// What a file was when it was opened.
struct Identity {
  uint64_t device = 0, inode = 0;
  int64_t size_bytes = 0;
  int64_t changed_ns = 0;  // time of the last change of the content
  bool operator==(const Identity&) const = default;
};

struct OpenFile {
  std::string path;
  int fd = -1;
  bool direct = false;
  int64_t block = 1;         // offsets and lengths of reads are multiples of it
  int64_t memory_align = 1;  // and addresses of this
  Identity identity;
};

struct Batch {
  std::mutex mutex;
  std::condition_variable over;
  int64_t requests_left = 0;
  Status status;                       // the first error
  std::vector<const OpenFile*> files;  // that it reads, each once
};

struct Request {
  DiskRequest wanted;
  const OpenFile* file = nullptr;
  std::shared_ptr<Batch> batch;
  std::byte* base = nullptr;  // where the first block lands
  int64_t lead = 0;           // bytes between it and the wanted ones
  int64_t pieces_left = 0;    // under the mutex of the engine
  bool failed = false;
};

struct Piece {
  std::shared_ptr<Request> request;
  int64_t offset = 0, bytes = 0;  // whole blocks
  int64_t needed = 0;             // bytes of them that the request wants; the rest may lie behind the end of the file
  std::byte* at = nullptr;
  int64_t done = 0;  // bytes that have arrived
  int retries = 0;
};

// What a system call answered about a piece: go on with the rest, or it is over.
enum class Progress { again, over };

class Engine {
 public:
  explicit Engine(const DiskOptions& options) : options_(options) {}
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Status start_ring();  // unavailable when there is none
  Status start_threads();  // exhausted when the system gives none
  Result<int32_t> open(const std::string& path);
  std::shared_ptr<Batch> submit(std::span<const DiskRequest> requests, DiskPriority priority);

  const DiskOptions& options() const { return options_; }
  const OpenFile& file(int32_t number) const;
  bool uses_ring() const { return ring_ != nullptr; }
  DiskCounters counters() const;

  // For the backends. `result` is what pread would return, or -errno. Ends the piece when there is no more to do.
  Progress advance(Piece& piece, int64_t result);
  bool take(Piece& piece);       // false when the queue is empty; does not wait
  bool wait_take(Piece& piece);  // false when the engine stops
  bool stopping() const;

 private:
  class Ring;
  void finish(Piece& piece, Status status);
  void wake_ring();

  DiskOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Piece> urgent_, ahead_;
  std::deque<OpenFile> files_;  // stable addresses
  DiskCounters counters_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
  struct RingDelete {
    void operator()(Ring* ring) const;
  };
  std::unique_ptr<Ring, RingDelete> ring_;
};

Status check_unchanged(const OpenFile& file);

}  // namespace k3::disk
