#include "k3/model/gpu/pinned_feeder.h"

#include <algorithm>
#include <mutex>

namespace k3 {
namespace {

// Large enough for the full rate of a copy, small enough that what a core has read is still in its cache when it is copied: on one
// H200 with 16 cores 49 GB/s of 55; slots of 8 MiB gave 44. Pinning itself takes half a millisecond a MiB.
constexpr int64_t kSlotBytes = int64_t{2} << 20;
constexpr int kMostWorkers = 16;  // twelve keep the bus busy

}  // namespace

Result<PinnedFeeder> PinnedFeeder::create(Device device, ThreadPool& pool, Stream stream) {
  PinnedFeeder feeder;
  feeder.device_ = device;
  feeder.pool_ = &pool;
  feeder.stream_ = stream;
  K3_TRY(set_current_device(device));
  feeder.workers_.resize(static_cast<size_t>(std::min(pool.size(), kMostWorkers)));
  K3_TRY_ASSIGN(feeder.memory_, Storage::pinned(2 * kSlotBytes * static_cast<int64_t>(feeder.workers_.size())));
  std::byte* at = feeder.memory_.data();
  for (Worker& worker : feeder.workers_) {
    for (Slot& slot : worker.slots) {
      slot.memory = at;
      at += kSlotBytes;
      K3_TRY_ASSIGN(slot.copied, make_event());
    }
  }
  return feeder;
}

Status PinnedFeeder::bring(const Checkpoint& checkpoint, const Piece& piece, Worker& worker, const std::byte* host, std::byte* device) {
  const ReadJob& job = *piece.job;
  Slot& slot = worker.slots[worker.turn ^= 1];
  if (slot.in_use) K3_TRY(wait_for(slot.copied));
  const std::span<std::byte> bytes(slot.memory, static_cast<size_t>(piece.bytes));
  K3_TRY(checkpoint.read_range(job.name, job.info, piece.begin, bytes));
  ReadJob part = job;  // what there is to check of it
  part.target = slot.memory;
  part.info.size_bytes = piece.bytes;
  K3_TRY(finish_job(checkpoint, part, slot.memory));
  K3_TRY(copy_async(device + (job.target - host) + piece.begin, slot.memory, piece.bytes, stream_));
  slot.in_use = true;
  return record(slot.copied, stream_);
}

Status PinnedFeeder::feed(const Checkpoint& checkpoint, const std::vector<ReadJob>& jobs, const std::byte* host, std::byte* device,
                          std::atomic<int64_t>& done, int64_t total, const LoadProgress& progress) {
  std::vector<ReadJob> small;
  std::vector<Piece> pieces;
  for (const ReadJob& job : jobs) {
    if (is_small(job)) {
      small.push_back(job);
      continue;
    }
    for (int64_t begin = 0; begin < job.info.size_bytes; begin += kSlotBytes) {
      pieces.push_back({&job, begin, std::min(kSlotBytes, job.info.size_bytes - begin)});
    }
  }
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status first_error;
  pool_->run([&](int index) {
    if (static_cast<size_t>(index) >= workers_.size()) return;
    Status status = set_current_device(device_);
    Worker& worker = workers_[static_cast<size_t>(index)];
    for (size_t i = next++; status.ok() && i < pieces.size() && !failed; i = next++) {
      status = bring(checkpoint, pieces[i], worker, host, device);
      done += pieces[i].bytes;
      if (index == 0 && progress) progress(std::min(done.load(), total), total);
    }
    if (status.ok()) return;
    const std::lock_guard lock(mutex);
    if (!failed.exchange(true)) first_error = std::move(status);
  });
  K3_TRY(std::move(first_error));
  return run_jobs(checkpoint, small, *pool_, done, total, progress);
}

Result<double> PinnedFeeder::measure_copy() {
  constexpr int kRounds = 8;
  const int64_t bytes = memory_.size_bytes();
  K3_TRY_ASSIGN(const Storage to, Storage::allocate_on(device_, bytes));
  K3_TRY_ASSIGN(const EventHandle begin, make_event());
  K3_TRY_ASSIGN(const EventHandle end, make_event());
  std::vector<double> rates;
  for (int i = 0; i <= kRounds; ++i) {
    K3_TRY(record(begin, stream_));
    K3_TRY(copy_async(to.data(), memory_.data(), bytes, stream_));
    K3_TRY(record(end, stream_));
    K3_TRY_ASSIGN(const double seconds, seconds_between(begin, end));
    if (i > 0) rates.push_back(static_cast<double>(bytes) / seconds);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace k3
