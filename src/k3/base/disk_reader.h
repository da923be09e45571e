// Purpose:  reads many byte ranges of files at once, past the page cache, into memory of the caller.
// Shapes:   a request is any range [offset, offset + bytes) of a file; it arrives at `target` exactly.
// Units:    bytes, seconds.
// Memory:   kDiskSlack bytes before and behind every target are scratch of the read (blocks of the disk are read
//           whole); targets stay valid until the ticket is waited for or dropped (dropping waits).
// Threads:  everything may be called from many threads. Reads run in the kernel (io_uring) or on threads of the reader.
// Errors:   wait: names file, offset, length and errno; corrupt for a file that ends early or is not the file that was
//           opened (device, inode, size and time of change are compared after every read). Data of a failed ticket must
//           not be used.
// Source:   io_uring(7), open(2) O_DIRECT. Alignment asked of statx (STATX_DIOALIGN), 4,096 where it does not say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "k3/base/result.h"

namespace k3 {

constexpr int64_t kDiskSlack = 8192;

struct DiskRequest {
  int32_t file = 0;  // of DiskReader::open
  int64_t offset = 0;
  int64_t bytes = 0;
  std::byte* target = nullptr;
};

enum class DiskPriority { urgent, ahead };  // somebody waits now; somebody will

struct DiskOptions {
  enum class Backend { automatic, ring, threads } backend = Backend::automatic;
  bool direct = true;  // O_DIRECT where the file system has it
  int depth = 32;      // pieces in flight
  int64_t piece_bytes = int64_t{1} << 20;
};

struct DiskCounters {
  int64_t requests = 0, pieces = 0, read_bytes = 0;
};

namespace disk {
struct Batch;
class Engine;
}  // namespace disk

// Reads that were started together.
class DiskTicket {
 public:
  DiskTicket() = default;
  DiskTicket(DiskTicket&&) noexcept = default;
  DiskTicket& operator=(DiskTicket&& other) noexcept;
  ~DiskTicket();

  explicit operator bool() const { return batch_ != nullptr; }
  bool done() const;  // wait() will not block
  Status wait();      // all reads of the ticket are over; the ticket is empty then

 private:
  friend class DiskReader;
  explicit DiskTicket(std::shared_ptr<disk::Batch> batch) : batch_(std::move(batch)) {}
  std::shared_ptr<disk::Batch> batch_;
};

class DiskReader {
 public:
  // unavailable: Backend::ring where the kernel or the build has no io_uring.
  static Result<DiskReader> create(const DiskOptions& options = {});
  DiskReader(DiskReader&&) noexcept;
  DiskReader& operator=(DiskReader&&) noexcept;
  ~DiskReader();  // every ticket must be gone

  Result<int32_t> open(const std::string& path);
  DiskTicket start(std::span<const DiskRequest> requests, DiskPriority priority = DiskPriority::urgent);

  bool uses_ring() const;
  bool direct(int32_t file) const;  // read past the page cache
  int64_t size_bytes(int32_t file) const;
  const std::string& path(int32_t file) const;
  DiskCounters counters() const;

 private:
  explicit DiskReader(std::unique_ptr<disk::Engine> engine);
  std::unique_ptr<disk::Engine> engine_;
};

}  // namespace k3
