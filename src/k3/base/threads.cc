#include "k3/base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
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

}  // namespace

struct ThreadPool::Impl {
  int size = 1;
  std::vector<std::thread> workers;
  const std::function<void(int)>* body = nullptr;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> pending{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;

  void worker(int index) {
    uint64_t seen = 0;
    for (;;) {
      uint64_t now = generation.load(std::memory_order_acquire);
      for (int i = 0; now == seen && i < kSpins; ++i) {
        pause();
        now = generation.load(std::memory_order_acquire);
      }
      if (now == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return generation.load(std::memory_order_acquire) != seen; });
        now = generation.load(std::memory_order_acquire);
      }
      seen = now;
      if (stop.load(std::memory_order_acquire)) return;
      (*body)(index);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const std::lock_guard lock(mutex);
        done.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  K3_CHECK(threads >= 1, "thread pool of {} threads", threads);
  // A system that grants no more threads (limits of users and containers) leaves a smaller pool.
  impl_->workers.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) impl_->workers.emplace_back([impl = impl_.get(), i] { impl->worker(i); });
  } catch (const std::system_error& e) {
    log_warn("{} of {} threads started: {}", impl_->workers.size() + 1, threads, e.what());
  }
  impl_->size = static_cast<int>(impl_->workers.size()) + 1;
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop.store(true, std::memory_order_release);
    impl_->generation.fetch_add(1, std::memory_order_acq_rel);
  }
  impl_->wake.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::size() const { return impl_->size; }

void ThreadPool::run(const std::function<void(int)>& body) {
  if (impl_->size == 1) {
    body(0);
    return;
  }
  impl_->body = &body;
  impl_->pending.store(impl_->size - 1, std::memory_order_release);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->generation.fetch_add(1, std::memory_order_acq_rel);
  }
  impl_->wake.notify_all();
  body(0);
  for (int i = 0; i < kSpins && impl_->pending.load(std::memory_order_acquire) != 0; ++i) pause();
  if (impl_->pending.load(std::memory_order_acquire) != 0) {
    std::unique_lock lock(impl_->mutex);
    impl_->done.wait(lock, [&] { return impl_->pending.load(std::memory_order_acquire) == 0; });
  }
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t units = (count + grain - 1) / grain;
  const int64_t parts = std::min<int64_t>(units, impl_->size);
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
  return std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace k3
