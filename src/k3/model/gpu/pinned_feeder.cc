#include "k3/model/gpu/pinned_feeder.h"

#include <algorithm>
#include <system_error>

namespace k3 {
namespace {

// Each copy costs the bus 4 us beside its bytes, so copies are large; what a core reads at a time is small enough for its
// cache. Buffers: what is being copied, what waits for that, and what all workers fill.
constexpr int64_t kPieceBytes = int64_t{1} << 20, kBufferBytes = int64_t{8} << 20, kBuffers = PinnedFeeder::kPinnedBytes / kBufferBytes;
constexpr int kMostWorkers = 16;  // on one H200 twelve were 10 % slower, 24 no faster
constexpr int64_t kProbeBytes = int64_t{64} << 20;

}  // namespace

Status PinnedFeeder::pin() {
  K3_TRY(set_current_device(device_));
  K3_TRY_ASSIGN(memory_, Storage::pinned(kPinnedBytes));
  buffers_.resize(static_cast<size_t>(kBuffers));
  std::byte* at = memory_.data();
  for (Buffer& buffer : buffers_) {
    buffer.memory = at;
    at += kBufferBytes;
    K3_TRY_ASSIGN(buffer.copied, make_event());
  }
  return {};
}

Result<std::unique_ptr<PinnedFeeder>> PinnedFeeder::start(Device device, ThreadPool& pool, Stream stream, const Checkpoint& checkpoint,
                                                          int64_t total, const LoadProgress& progress) {
  std::unique_ptr<PinnedFeeder> feeder(new PinnedFeeder(device, pool, stream, checkpoint, total, progress));
  K3_TRY(feeder->pin());
  try {
    feeder->runner_ = std::thread([raw = feeder.get()] { raw->pool_.run([raw](int index) { raw->work(index); }); });
  } catch (const std::system_error& e) {
    return fail(Code::exhausted, "the system starts no thread to read weights with: {}", e.what());
  }
  return feeder;
}

PinnedFeeder::~PinnedFeeder() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  news_.notify_all();
  if (runner_.joinable()) runner_.join();
  (void)synchronize(stream_);  // copies read from memory that goes now
}

// Cuts a job into pieces and puts them into groups; those that lie behind each other there and at their place are one copy.
void PinnedFeeder::add(const ReadJob& job, int64_t part, std::byte* to) {
  for (int64_t begin = 0; begin < job.info.size_bytes;) {
    if (open_bytes_ == kBufferBytes) {
      groups_.emplace_back();
      open_bytes_ = 0;
    }
    const int64_t bytes = std::min({kPieceBytes, job.info.size_bytes - begin, kBufferBytes - open_bytes_});
    Group& group = groups_.back();
    if (!group.copies.empty() && group.copies.back().to + group.copies.back().bytes == to + begin &&
        group.copies.back().at + group.copies.back().bytes == open_bytes_) {
      group.copies.back().bytes += bytes;
    } else {
      group.copies.push_back({to + begin, open_bytes_, bytes});
    }
    ++group.left;
    ++group.pieces;
    pieces_.push_back({&job, part, static_cast<int64_t>(groups_.size()) - 1, begin, bytes, open_bytes_});
    open_bytes_ += bytes;
    begin += bytes;
  }
}

int64_t PinnedFeeder::feed(const std::vector<ReadJob>& jobs, const std::byte* host, std::byte* device) {
  std::unique_lock lock(mutex_);
  const auto part = static_cast<int64_t>(left_.size());
  const size_t before = pieces_.size();
  for (const ReadJob& job : jobs) {
    if (is_small(job)) pieces_.push_back({&job, part, -1, 0, job.info.size_bytes, 0});
  }
  open_bytes_ = kBufferBytes;  // no group has two parts
  for (const ReadJob& job : jobs) {
    if (!is_small(job)) add(job, part, device + (job.target - host));
  }
  left_.push_back(static_cast<int64_t>(pieces_.size() - before));
  lock.unlock();
  news_.notify_all();
  return part;
}

Status PinnedFeeder::wait(int64_t part) {
  std::unique_lock lock(mutex_);
  part_done_.wait(lock, [&] { return left_[static_cast<size_t>(part)] == 0 || !error_.ok(); });
  return error_.ok() ? Status() : Status(Error(error_.error()));
}

void PinnedFeeder::work(int index) {
  if (index >= kMostWorkers) return;
  Status status = set_current_device(device_);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!status.ok() && error_.ok()) error_ = std::move(status);
    news_.wait(lock, [&] { return closed_ || !pieces_.empty() || !error_.ok(); });
    if (closed_ || !error_.ok()) break;
    const Piece piece = pieces_.front();
    pieces_.pop_front();
    status = piece.group < 0 ? make_small(piece, lock) : bring(piece, lock);
    done_bytes_ += piece.bytes;
    if (index != 0 || !progress_) continue;
    const int64_t done = std::min(done_bytes_, total_);
    lock.unlock();
    progress_(done, total_);
    lock.lock();
  }
  lock.unlock();
  news_.notify_all();
  copy_queued_.notify_all();
  part_done_.notify_all();
}

void PinnedFeeder::end_pieces(int64_t part, int64_t count) {
  int64_t& left = left_[static_cast<size_t>(part)];
  left -= count;
  if (left == 0) part_done_.notify_all();
}

Status PinnedFeeder::make_small(const Piece& piece, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  Status status = run_job(checkpoint_, *piece.job);
  lock.lock();
  if (status.ok()) end_pieces(piece.part, 1);
  return status;
}

Status PinnedFeeder::bring(const Piece& piece, std::unique_lock<std::mutex>& lock) {
  Buffer& buffer = buffers_[static_cast<size_t>(piece.group % kBuffers)];
  // The group that had the buffer before has queued its copies; once they have run, it is free.
  copy_queued_.wait(lock, [&] { return buffer.groups == piece.group / kBuffers || !error_.ok(); });
  if (!error_.ok()) return {};
  lock.unlock();
  Status status = piece.group < kBuffers ? Status() : wait_for(buffer.copied);
  if (status.ok()) status = read(piece, buffer.memory + piece.at);
  lock.lock();
  if (!status.ok()) return status;
  Group& group = groups_[static_cast<size_t>(piece.group)];
  if (--group.left > 0) return {};
  lock.unlock();
  status = copy(group, buffer);
  lock.lock();
  if (!status.ok()) return status;
  ++buffer.groups;
  copy_queued_.notify_all();
  end_pieces(piece.part, group.pieces);
  return {};
}

Status PinnedFeeder::read(const Piece& piece, std::byte* to) const {
  const ReadJob& job = *piece.job;
  K3_TRY(checkpoint_.read_range(job.name, job.info, piece.begin, std::span(to, static_cast<size_t>(piece.bytes))));
  ReadJob part = job;  // what there is to check of it
  part.target = to;
  part.info.size_bytes = piece.bytes;
  return finish_job(checkpoint_, part, to);
}

Status PinnedFeeder::copy(const Group& group, Buffer& buffer) {
  for (const Copy& c : group.copies) {
    K3_TRY(copy_async(c.to, buffer.memory + c.at, c.bytes, stream_));
  }
  return record(buffer.copied, stream_);
}

Result<double> PinnedFeeder::measure_copy(Device device, Stream stream) {
  constexpr int kRounds = 8;
  K3_TRY_ASSIGN(const Storage from, Storage::pinned(kProbeBytes));
  K3_TRY_ASSIGN(const Storage to, Storage::allocate_on(device, kProbeBytes));
  K3_TRY_ASSIGN(const EventHandle begin, make_event());
  K3_TRY_ASSIGN(const EventHandle end, make_event());
  std::vector<double> rates;
  for (int i = 0; i <= kRounds; ++i) {
    K3_TRY(record(begin, stream));
    K3_TRY(copy_async(to.data(), from.data(), kProbeBytes, stream));
    K3_TRY(record(end, stream));
    K3_TRY_ASSIGN(const double seconds, seconds_between(begin, end));
    if (i > 0) rates.push_back(static_cast<double>(kProbeBytes) / seconds);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace k3
