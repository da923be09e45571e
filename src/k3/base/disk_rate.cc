#include "k3/base/disk_rate.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <memory>

#include "k3/base/disk_reader.h"
#include "k3/base/rng.h"

namespace k3 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPage = 4096;

int64_t whole_pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Reads ranges whose offsets `next` gives (whole pages, so that nothing has to be moved), `flight` at a time, until the time
// is up.
template <class Next>
Result<double> rate(DiskReader& reader, int32_t file, int64_t range, size_t flight, double seconds, const Next& next) {
  const int64_t slot = whole_pages(range) + 2 * kDiskSlack;
  const size_t total = flight * static_cast<size_t>(slot);
  const std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(kPage), total)), std::free);
  if (memory == nullptr) return fail(Code::exhausted, "no memory for {} bytes to read into", total);
  std::deque<std::pair<DiskTicket, size_t>> running;
  const auto begin = [&](size_t place) {
    const DiskRequest request{file, next(), range, memory.get() + static_cast<int64_t>(place) * slot + kDiskSlack};
    running.emplace_back(reader.start(std::span(&request, 1)), place);
  };
  for (size_t i = 0; i < flight; ++i) begin(i);
  const auto start = Clock::now();
  int64_t bytes = 0;
  double taken = 0;
  while (!running.empty()) {
    const size_t place = running.front().second;
    K3_TRY(running.front().first.wait());
    running.pop_front();
    bytes += range;
    taken = std::chrono::duration<double>(Clock::now() - start).count();
    if (taken < seconds) begin(place);
  }
  return static_cast<double>(bytes) / taken;
}

}  // namespace

Result<DiskRate> measure_disk_read(const std::string& path, int64_t range_bytes, double seconds) {
  K3_TRY_ASSIGN(DiskReader reader, DiskReader::create());
  K3_TRY_ASSIGN(const int32_t file, reader.open(path));
  const int64_t size = reader.size_bytes(file);
  if (size == 0) return fail(Code::invalid_argument, "{}: an empty file has no reading rate", path);
  DiskRate out;
  out.direct = reader.direct(file);
  out.ring = reader.uses_ring();
  const int64_t range = std::min(size, range_bytes), piece = std::min(size, int64_t{1} << 20);
  int64_t at = 0;
  K3_TRY_ASSIGN(out.sequential_bytes_per_second, rate(reader, file, piece, 32, seconds, [&] {
                  if (at + piece > size) at = 0;
                  return std::exchange(at, at + piece);
                }));
  const Rng rng(1, 1);
  uint64_t draw = 0;
  K3_TRY_ASSIGN(out.random_bytes_per_second, rate(reader, file, range, 16, seconds, [&] {
                  return static_cast<int64_t>(rng.bits(draw++) % static_cast<uint64_t>(size - range + 1)) / kPage * kPage;
                }));
  return out;
}

}  // namespace k3
