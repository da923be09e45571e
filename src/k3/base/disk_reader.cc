#include "k3/base/disk_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "k3/base/disk_engine.h"
#include "k3/base/log.h"

namespace k3 {
namespace disk {
namespace {

constexpr int64_t kMostAlign = 4096;  // kDiskSlack holds a block and an alignment of this size
constexpr int kReadThreads = 8;
constexpr int kMostRetries = 16;

int64_t down(int64_t value, int64_t unit) { return value / unit * unit; }
int64_t up(int64_t value, int64_t unit) { return down(value + unit - 1, unit); }

std::byte* down(std::byte* at, int64_t unit) {
  return at - static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(unit));
}

Identity identity_of(const struct stat& info) {
  return {info.st_dev, info.st_ino, info.st_size, int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

// Some file systems take the flag at open and refuse the reads: one block is tried.
bool direct_reads_work(const OpenFile& file) {
  if (file.identity.size_bytes == 0) return false;
  void* block = std::aligned_alloc(static_cast<size_t>(kMostAlign), static_cast<size_t>(kMostAlign));
  if (block == nullptr) return false;
  const ssize_t n = ::pread(file.fd, block, static_cast<size_t>(kMostAlign), 0);
  std::free(block);
  return n > 0;
}

bool open_direct(OpenFile& file) {
  file.fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
  if (file.fd < 0) return false;
  file.block = file.memory_align = kMostAlign;
#ifdef STATX_DIOALIGN
  struct statx facts {};
  if (::statx(file.fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 && (facts.stx_mask & STATX_DIOALIGN) != 0) {
    file.block = facts.stx_dio_offset_align;
    file.memory_align = facts.stx_dio_mem_align;
  }
#endif
  const bool usable =
      file.block >= 1 && file.block <= kMostAlign && file.memory_align >= 1 && file.memory_align <= kMostAlign;
  struct stat info {};
  if (usable && ::fstat(file.fd, &info) == 0 && S_ISREG(info.st_mode)) {
    file.identity = identity_of(info);
    if (direct_reads_work(file)) return true;
  }
  ::close(file.fd);
  file.fd = -1;
  return false;
}

Status open_buffered(OpenFile& file) {
  file.block = file.memory_align = 1;
  file.fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd < 0) {
    const Code code = errno == ENOENT || errno == ENOTDIR ? Code::not_found : Code::unavailable;
    return fail(code, "{}: cannot open: {}", file.path, std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(std::exchange(file.fd, -1));
    return fail(Code::invalid_argument, "{}: not a regular file", file.path);
  }
  file.identity = identity_of(info);
  return {};
}

}  // namespace

Status check_unchanged(const OpenFile& file) {
  struct stat info {};
  if (::stat(file.path.c_str(), &info) != 0) {
    return fail(Code::corrupt, "{}: the file is gone since it was opened: {}", file.path, std::strerror(errno));
  }
  const Identity now = identity_of(info), &then = file.identity;
  if (now == then) return {};
  if (now.device != then.device || now.inode != then.inode) {
    return fail(Code::corrupt, "{}: the file was replaced by another since it was opened", file.path);
  }
  if (now.size_bytes != then.size_bytes) {
    return fail(Code::corrupt, "{}: the file had {} bytes when it was opened and has {} now", file.path, then.size_bytes,
                now.size_bytes);
  }
  return fail(Code::corrupt, "{}: the file was written to since it was opened", file.path);
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  ring_.reset();
  for (std::thread& thread : threads_) thread.join();
  for (OpenFile& file : files_) ::close(file.fd);
}

Result<int32_t> Engine::open(const std::string& path) {
  OpenFile file;
  file.path = path;
  file.direct = options_.direct && open_direct(file);
  if (!file.direct) K3_TRY(open_buffered(file));
  const std::lock_guard lock(mutex_);
  files_.push_back(std::move(file));
  return static_cast<int32_t>(files_.size() - 1);
}

const OpenFile& Engine::file(int32_t number) const {
  const std::lock_guard lock(mutex_);
  K3_CHECK(number >= 0 && static_cast<size_t>(number) < files_.size(), "disk file {} of {}", number, files_.size());
  return files_[static_cast<size_t>(number)];
}

DiskCounters Engine::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

bool Engine::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

std::shared_ptr<Batch> Engine::submit(std::span<const DiskRequest> wanted, DiskPriority priority) {
  auto batch = std::make_shared<Batch>();
  std::vector<Piece> pieces;
  for (const DiskRequest& want : wanted) {
    if (want.bytes == 0) continue;
    auto request = std::make_shared<Request>();
    request->wanted = want;
    request->file = &file(want.file);
    request->batch = batch;
    const OpenFile& from = *request->file;
    const int64_t begin = down(want.offset, from.block), end = up(want.offset + want.bytes, from.block);
    request->lead = want.offset - begin;
    request->base = down(want.target - request->lead, from.memory_align);
    if (std::find(batch->files.begin(), batch->files.end(), request->file) == batch->files.end()) {
      batch->files.push_back(request->file);
    }
    ++batch->requests_left;
    const int64_t step = std::max(up(options_.piece_bytes, from.block), from.block);
    for (int64_t at = begin; at < end; at += step) {
      Piece piece;
      piece.request = request;
      piece.offset = at;
      piece.bytes = std::min(step, end - at);
      piece.needed = std::min(at + piece.bytes, want.offset + want.bytes) - at;
      piece.at = request->base + (at - begin);
      pieces.push_back(std::move(piece));
      ++request->pieces_left;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    auto& queue = priority == DiskPriority::urgent ? urgent_ : ahead_;
    counters_.requests += batch->requests_left;
    counters_.pieces += static_cast<int64_t>(pieces.size());
    queue.insert(queue.end(), std::make_move_iterator(pieces.begin()), std::make_move_iterator(pieces.end()));
  }
  if (ring_ != nullptr) {
    wake_ring();
  } else {
    work_.notify_all();
  }
  return batch;
}

bool Engine::take(Piece& piece) {
  const std::lock_guard lock(mutex_);
  auto& queue = urgent_.empty() ? ahead_ : urgent_;
  if (queue.empty()) return false;
  piece = std::move(queue.front());
  queue.pop_front();
  return true;
}

bool Engine::wait_take(Piece& piece) {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [&] { return stop_ || !urgent_.empty() || !ahead_.empty(); });
  auto& queue = urgent_.empty() ? ahead_ : urgent_;
  if (queue.empty()) return false;
  piece = std::move(queue.front());
  queue.pop_front();
  return true;
}

Progress Engine::advance(Piece& piece, int64_t result) {
  const Request& request = *piece.request;
  const OpenFile& from = *request.file;
  const DiskRequest& want = request.wanted;
  if (result < 0) {
    const auto number = static_cast<int>(-result);
    if ((number == EINTR || number == EAGAIN) && ++piece.retries <= kMostRetries) return Progress::again;
    finish(piece, fail(Code::unavailable, "{}: cannot read {} bytes at offset {}: {}", from.path, want.bytes, want.offset,
                       std::strerror(number)));
    return Progress::over;
  }
  // A short read goes on behind its last whole block; one that brings nothing more is the end of the file.
  const int64_t arrived = piece.done + result;
  if (arrived >= piece.needed) {
    finish(piece, {});
    return Progress::over;
  }
  const int64_t whole = down(arrived, from.block);
  if (result == 0 || whole <= piece.done) {
    finish(piece, fail(Code::corrupt, "{}: file ends at byte {}, {} bytes were expected from offset {}", from.path,
                       piece.offset + arrived, want.bytes, want.offset));
    return Progress::over;
  }
  piece.done = whole;
  return Progress::again;
}

void Engine::finish(Piece& piece, Status status) {
  const std::shared_ptr<Request> request = std::move(piece.request);
  Batch& batch = *request->batch;
  const bool good = status.ok();
  if (!good) {
    const std::lock_guard lock(batch.mutex);
    if (batch.status.ok()) batch.status = std::move(status);
  }
  {
    const std::lock_guard lock(mutex_);
    if (good) counters_.read_bytes += piece.bytes;
    request->failed |= !good;
    if (--request->pieces_left > 0) return;
  }
  const std::byte* arrived = request->base + request->lead;
  const DiskRequest& want = request->wanted;
  if (!request->failed && arrived != want.target) std::memmove(want.target, arrived, static_cast<size_t>(want.bytes));
#ifdef POSIX_FADV_DONTNEED
  // Without O_DIRECT the pages would stay in the page cache, which a control group is charged for.
  if (!request->file->direct) ::posix_fadvise(request->file->fd, want.offset, want.bytes, POSIX_FADV_DONTNEED);
#endif
  const std::lock_guard lock(batch.mutex);
  if (--batch.requests_left == 0) batch.over.notify_all();
}

Status Engine::start_threads() {
  for (int i = 0; i < kReadThreads; ++i) {
    try {
      threads_.emplace_back([this] {
        Piece piece;
        while (wait_take(piece)) {
          Progress progress = Progress::again;
          while (progress == Progress::again) {
            const ssize_t n = ::pread(piece.request->file->fd, piece.at + piece.done,
                                      static_cast<size_t>(piece.bytes - piece.done), piece.offset + piece.done);
            progress = advance(piece, n < 0 ? -errno : n);
          }
        }
      });
    } catch (const std::system_error& e) {
      if (threads_.empty()) return fail(Code::exhausted, "no thread for reading files: {}", e.what());
      log_warn("{} of {} threads for reading started: {}", threads_.size(), kReadThreads, e.what());
      break;
    }
  }
  return {};
}

}  // namespace disk

bool DiskTicket::done() const {
  if (batch_ == nullptr) return true;
  const std::lock_guard lock(batch_->mutex);
  return batch_->requests_left == 0;
}

Status DiskTicket::wait() {
  if (batch_ == nullptr) return {};
  const std::shared_ptr<disk::Batch> batch = std::move(batch_);
  batch_.reset();
  std::unique_lock lock(batch->mutex);
  batch->over.wait(lock, [&] { return batch->requests_left == 0; });
  // A file that changed explains a short read better than the read does.
  for (const disk::OpenFile* file : batch->files) K3_TRY(disk::check_unchanged(*file));
  return std::move(batch->status);
}

DiskTicket& DiskTicket::operator=(DiskTicket&& other) noexcept {
  if (this != &other) {
    const DiskTicket old(std::move(*this));  // waits
    batch_ = std::move(other.batch_);
  }
  return *this;
}

DiskTicket::~DiskTicket() {
  if (batch_ == nullptr) return;
  std::unique_lock lock(batch_->mutex);
  batch_->over.wait(lock, [&] { return batch_->requests_left == 0; });
}

DiskReader::DiskReader(std::unique_ptr<disk::Engine> engine) : engine_(std::move(engine)) {}
DiskReader::DiskReader(DiskReader&&) noexcept = default;
DiskReader& DiskReader::operator=(DiskReader&&) noexcept = default;
DiskReader::~DiskReader() = default;

Result<DiskReader> DiskReader::create(const DiskOptions& options) {
  auto engine = std::make_unique<disk::Engine>(options);
  if (options.backend != DiskOptions::Backend::threads) {
    Status ring = engine->start_ring();
    if (ring.ok()) return DiskReader(std::move(engine));
    if (options.backend == DiskOptions::Backend::ring) return std::move(ring).take_error();
  }
  K3_TRY(engine->start_threads());
  return DiskReader(std::move(engine));
}

Result<int32_t> DiskReader::open(const std::string& path) { return engine_->open(path); }

DiskTicket DiskReader::start(std::span<const DiskRequest> requests, DiskPriority priority) {
  return DiskTicket(engine_->submit(requests, priority));
}

bool DiskReader::uses_ring() const { return engine_->uses_ring(); }
bool DiskReader::direct(int32_t file) const { return engine_->file(file).direct; }
int64_t DiskReader::size_bytes(int32_t file) const { return engine_->file(file).identity.size_bytes; }
const std::string& DiskReader::path(int32_t file) const { return engine_->file(file).path; }
DiskCounters DiskReader::counters() const { return engine_->counters(); }

}  // namespace k3
