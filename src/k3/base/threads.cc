#include "k3/base/threads.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <system_error>
#include <thread>

#include "k3/base/check.h"
#include "k3/base/log.h"
#include "k3/base/numa/cgroup.h"
#include "k3/base/numa/topology.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace k3 {
namespace {

// A sleeping worker starts 10 to 30 us late, so that spinning as long costs at most as much again; ops of a token follow
// each other within 10 us, the sampler of a large vocabulary takes more.
constexpr double kSpinUs = 50;
// Where others want the CPU: bridges the gap between two small ops, no more.
constexpr double kShortSpinUs = 3;
// A part that nobody has begun after this time belongs to a worker that has no CPU. Looking earlier would only pull the
// cache lines of the others back and forth. One that has just been woken gets the time that waking takes.
constexpr double kHelpAfterUs = 1, kHelpAfterWakingUs = 15;
// Idle periods with short spins after a sign that the CPU is shared.
constexpr int kCrowdedPeriods = 256;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Looks at ready() every few nanoseconds for about that time; true as soon as it holds.
template <class Ready>
bool spin(int64_t looks, const Ready& ready) {
  for (int64_t i = 0; i < looks; ++i) {
    if (ready()) return true;
    pause();
  }
  return ready();  // also after no look at all
}

// A pause lasts 15 to 70 ns by processor.
double looks_per_us() {
  static const double rate = [] {
    constexpr int kLooks = 500;
    double best_us = 1e9;
    for (int round = 0; round < 4; ++round) {
      std::atomic<int> never{0};
      const double start = now_us();
      spin(kLooks, [&] { return never.load(std::memory_order_acquire) != 0; });
      best_us = std::min(best_us, now_us() - start);
    }
    return kLooks / std::max(best_us, 0.5);
  }();
  return rate;
}

// A word to sleep on. Who changes a condition calls wake(); who sleeps says so first and then looks at the condition again:
// with both in one total order (seq_cst) one of the two sees the other. wake() takes the sign down, so that a sleeper that
// the system is slow to start is woken once and not by every region until it runs.
class Bed {
 public:
  template <class Ready>
  void sleep_unless(const Ready& ready) {
    taken_.store(true, std::memory_order_seq_cst);
    const uint32_t epoch = epoch_.load(std::memory_order_seq_cst);
    if (!ready()) ::syscall(SYS_futex, &epoch_, FUTEX_WAIT_PRIVATE, epoch, nullptr, nullptr, 0);
  }
  // True when somebody may have slept.
  bool wake() {
    if (!taken_.load(std::memory_order_seq_cst) || !taken_.exchange(false, std::memory_order_seq_cst)) return false;
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    ::syscall(SYS_futex, &epoch_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    return true;
  }

 private:
  std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> taken_{false};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

// The last regions that took and finished this part; on a cache line of its own, since its worker writes it.
struct alignas(64) Part {
  std::atomic<uint64_t> claimed{0};
  std::atomic<uint64_t> done{0};

  // True for one caller per region. A thread that comes late with the number of a finished region gets false, because that
  // region's parts are all claimed.
  bool claim(uint64_t region) {
    uint64_t before = claimed.load(std::memory_order_relaxed);
    return before < region && claimed.compare_exchange_strong(before, region, std::memory_order_acq_rel);
  }
};

bool pin_this_thread(std::span<const int> cpus) {
  const int most = *std::max_element(cpus.begin(), cpus.end());
  cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(most) + 1);
  if (set == nullptr) return false;
  const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most) + 1);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  const bool pinned = ::sched_setaffinity(0, bytes, set) == 0;
  CPU_FREE(set);
  return pinned;
}

// How long to spin before sleeping: long while that pays, short after signs that it does not.
class Patience {
 public:
  explicit Patience(bool oversubscribed)
      : longest_(oversubscribed ? 0 : static_cast<int64_t>(kSpinUs * looks_per_us())),
        shortest_(oversubscribed ? 0 : static_cast<int64_t>(kShortSpinUs * looks_per_us())),
        looks_(longest_) {}

  // Spins for as long as now seems right.
  template <class Ready>
  bool wait(const Ready& ready) {
    const int64_t looks = crowded_ > 0 ? shortest_ : looks_;
    crowded_ = std::max(0, crowded_ - 1);
    start_us_ = now_us();
    const bool came = spin(looks, ready);
    // Far more time than the loop can need: somebody else ran on this CPU meanwhile.
    if (now_us() - start_us_ > 2 * kSpinUs) crowded_ = kCrowdedPeriods;
    if (came) looks_ = longest_;
    return came;
  }
  // After sleeping: a gap that the longest spin would not have bridged either makes the next one shorter.
  void woken() {
    const bool bridgeable = now_us() - start_us_ < 2 * kSpinUs;
    looks_ = bridgeable ? longest_ : std::max(shortest_, looks_ / 2);
  }

 private:
  int64_t longest_, shortest_, looks_;
  int crowded_ = 0;
  double start_us_ = 0;
};

}  // namespace

// A region has one part per worker. Every thread takes its own part first and, after a moment, whatever nobody has begun,
// so a worker that the system does not let run costs nothing but its help: on a busy machine the caller does the work
// itself.
struct ThreadPool::Impl {
  Impl(int threads, bool crowded) : parts(static_cast<size_t>(threads)), oversubscribed(crowded), patience(crowded) {}

  std::vector<Part> parts;
  std::vector<std::thread> workers;
  const bool oversubscribed;
  const int64_t help_after = static_cast<int64_t>(kHelpAfterUs * looks_per_us());
  const int64_t help_after_waking = static_cast<int64_t>(kHelpAfterWakingUs * looks_per_us());
  Patience patience;  // the caller's
  // What starts a region, on one line: workers look at it.
  alignas(64) std::atomic<uint64_t> region{0};
  const BodyRef<int>* body = nullptr;
  std::atomic<bool> stop{false};
  alignas(64) Bed idle;    // workers without a region
  alignas(64) Bed caller;  // waits for parts that others have begun

  void take(size_t part, uint64_t number) {
    // Once a part is claimed the region cannot end before it is done, so body is the region's own.
    if (!parts[part].claim(number)) return;
    (*body)(static_cast<int>(part));
    parts[part].done.store(number, std::memory_order_seq_cst);
    caller.wake();
  }
  void take_from(size_t first, uint64_t number) {
    for (size_t i = 0; i < parts.size(); ++i) take((first + i) % parts.size(), number);
  }
  void worker(size_t index) {
    Patience own(oversubscribed);
    uint64_t seen = 0;
    const auto news = [&] { return region.load(std::memory_order_seq_cst) != seen; };
    for (;;) {
      if (!spin(help_after, news)) {
        take_from(index, seen);
        while (!own.wait(news)) {
          idle.sleep_unless(news);
          own.woken();
        }
      }
      seen = region.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      take(index, seen);
    }
  }

  void wait_for(uint64_t number, bool woke) {
    size_t at = 0;  // parts before it are done
    const auto over = [&] {
      while (at < parts.size() && parts[at].done.load(std::memory_order_seq_cst) >= number) ++at;
      return at == parts.size();
    };
    if (spin(woke ? help_after_waking : help_after, over)) return;
    take_from(0, number);
    while (!patience.wait(over)) {
      caller.sleep_unless(over);
      patience.woken();
    }
  }
};

ThreadPool::ThreadPool(int threads, std::span<const std::vector<int>> cpus)
    : impl_(std::make_unique<Impl>(threads, threads > available_threads())) {
  K3_CHECK(threads >= 1, "thread pool of {} threads", threads);
  const auto start = [impl = impl_.get()](size_t index, const std::vector<int>& own) {
    if (!own.empty() && !pin_this_thread(own)) log_warn("worker {} cannot be pinned to CPU {}", index, own.front());
    impl->worker(index);
  };
  // A system that grants no more threads (limits of users and containers) leaves fewer helpers; the parts stay.
  impl_->workers.reserve(static_cast<size_t>(threads - 1));
  try {
    for (size_t i = 1; i < static_cast<size_t>(threads); ++i) {
      impl_->workers.emplace_back(start, i, i < cpus.size() ? cpus[i] : std::vector<int>());
    }
  } catch (const std::system_error& e) {
    log_warn("{} of {} threads started: {}", impl_->workers.size() + 1, threads, e.what());
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_release);
  impl_->region.fetch_add(1, std::memory_order_seq_cst);
  impl_->idle.wake();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::size() const { return static_cast<int>(impl_->parts.size()); }

void ThreadPool::run(BodyRef<int> body) {
  if (size() == 1) {
    body(0);
    return;
  }
  impl_->body = &body;
  const uint64_t number = impl_->region.fetch_add(1, std::memory_order_seq_cst) + 1;
  const bool woke = impl_->idle.wake();
  impl_->take(0, number);
  impl_->wait_for(number, woke);
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, BodyRef<int64_t, int64_t> body) {
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

int available_threads() { return std::max(1, std::min(static_cast<int>(allowed_cpus().size()), cpu_quota())); }

}  // namespace k3
