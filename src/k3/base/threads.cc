#include "k3/base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "k3/base/check.h"
#include "k3/base/log.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace k3 {
namespace {

// About 20 us of spinning: longer than the gap between two ops of a token, short enough that a busy machine
// gets its core back.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// The region that last took this part; on a cache line of its own, since all threads write to them.
struct alignas(64) Part {
  std::atomic<uint64_t> claimed{0};

  // True for one caller per region. A thread that comes late with the number of a finished region gets false, because that
  // region's parts are all claimed.
  bool claim(uint64_t region) {
    uint64_t before = claimed.load(std::memory_order_relaxed);
    return before < region && claimed.compare_exchange_strong(before, region, std::memory_order_acq_rel);
  }
};

}  // namespace

// A region has one part per worker. Every thread takes its own part first and then whatever nobody has begun, so a worker
// that the system does not let run costs nothing but its help: on a busy machine the caller does the work itself.
struct ThreadPool::Impl {
  explicit Impl(int threads) : parts(static_cast<size_t>(threads)) {}

  std::vector<Part> parts;
  std::vector<std::thread> workers;
  const std::function<void(int)>* body = nullptr;
  alignas(64) std::atomic<uint64_t> region{0};  // number of the newest region; workers wait for it to change
  alignas(64) std::atomic<int> unfinished{0};   // parts of it that are not done; the caller waits for 0
  std::atomic<bool> stop{false};

  void take_parts(int first, uint64_t number) {
    const int count = static_cast<int>(parts.size());
    for (int i = 0; i < count; ++i) {
      const int part = first + i < count ? first + i : first + i - count;
      // Once a part is claimed the region cannot end before it is done, so body is the region's own.
      if (!parts[static_cast<size_t>(part)].claim(number)) continue;
      (*body)(part);
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
    }
  }

  void worker(int index) {
    uint64_t seen = 0;
    for (;;) {
      uint64_t now = region.load(std::memory_order_acquire);
      for (int i = 0; now == seen && i < kSpins; ++i) {
        pause();
        now = region.load(std::memory_order_acquire);
      }
      if (now == seen) {
        region.wait(seen, std::memory_order_acquire);
        continue;
      }
      seen = now;
      if (stop.load(std::memory_order_acquire)) return;
      take_parts(index, now);
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(threads)) {
  K3_CHECK(threads >= 1, "thread pool of {} threads", threads);
  // A system that grants no more threads (limits of users and containers) leaves fewer helpers; the parts stay.
  impl_->workers.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) impl_->workers.emplace_back([impl = impl_.get(), i] { impl->worker(i); });
  } catch (const std::system_error& e) {
    log_warn("{} of {} threads started: {}", impl_->workers.size() + 1, threads, e.what());
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_release);
  impl_->region.fetch_add(1, std::memory_order_acq_rel);
  impl_->region.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::size() const { return static_cast<int>(impl_->parts.size()); }

void ThreadPool::run(const std::function<void(int)>& body) {
  if (size() == 1) {
    body(0);
    return;
  }
  impl_->body = &body;
  impl_->unfinished.store(size(), std::memory_order_relaxed);
  const uint64_t number = impl_->region.fetch_add(1, std::memory_order_acq_rel) + 1;
  impl_->region.notify_all();
  impl_->take_parts(0, number);
  int left = impl_->unfinished.load(std::memory_order_acquire);
  for (int i = 0; left != 0 && i < kSpins; ++i) {
    pause();
    left = impl_->unfinished.load(std::memory_order_acquire);
  }
  while (left != 0) {
    impl_->unfinished.wait(left, std::memory_order_acquire);
    left = impl_->unfinished.load(std::memory_order_acquire);
  }
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t units = (count + grain - 1) / grain;
  const int64_t parts = std::min<int64_t>(units, size());
  if (parts <= 1) {
    body(0, count);
    return;
  }
  run([&](int worker) {
    if (worker >= parts) return;
    const int64_t begin = units * worker / parts * grain;
    const int64_t end = std::min(count, units * (worker + 1) / parts * grain);
    if (begin < end) body(begin, end);
  });
}

int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace k3
