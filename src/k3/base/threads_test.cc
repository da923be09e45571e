// The pool: every part once, whatever the system does with the threads; affinity; quotas of control groups.
#include "k3/base/threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "k3/base/file.h"
#include "k3/base/numa/cgroup.h"
#include "k3/base/numa/topology.h"

namespace k3 {
namespace {

void sleep_us(int64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 3, 16, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      pool.parallel_for(count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (const auto& s : seen) EXPECT_EQ(s.load(), 1);
    }
  }
}

TEST(ThreadPool, ManySmallRegionsEnd) {
  ThreadPool pool(3);
  std::atomic<int> sum{0};
  for (int i = 0; i < 5000; ++i) pool.run([&](int) { ++sum; });
  EXPECT_EQ(sum.load(), 15000);
}

// Gaps on both sides of the longest spin, so that workers are found spinning, on their way to sleep, and asleep.
TEST(ThreadPool, RegionsAfterGapsOfEveryLengthEnd) {
  for (const int threads : {2, 3}) {
    ThreadPool pool(threads);
    std::atomic<int> sum{0};
    int want = 0;
    for (const int64_t gap_us : {0, 1, 5, 20, 40, 50, 60, 80, 120, 300, 2000}) {
      for (int i = 0; i < 20; ++i, want += threads) {
        const auto start = std::chrono::steady_clock::now();
        while (std::chrono::steady_clock::now() - start < std::chrono::microseconds(gap_us)) continue;
        pool.run([&](int) { ++sum; });
        ASSERT_EQ(sum.load(), want + threads);
      }
    }
  }
}

// The caller is done at once and has to sleep until a slow worker, or a helper that took the part, wakes it.
TEST(ThreadPool, CallerWaitsForSlowParts) {
  ThreadPool pool(3);
  for (int i = 0; i < 20; ++i) {
    std::atomic<int> done{0};
    pool.run([&](int worker) {
      if (worker != i % 3) sleep_us(500);
      ++done;
    });
    ASSERT_EQ(done.load(), 3);
  }
}

TEST(ThreadPool, ManyMoreThreadsThanCpus) {
  ThreadPool pool(16 * available_threads() + 1);
  std::vector<int> seen(static_cast<size_t>(pool.size()), 0);
  for (int i = 0; i < 200; ++i) pool.run([&](int worker) { ++seen[static_cast<size_t>(worker)]; });
  for (const int count : seen) EXPECT_EQ(count, 200);
}

TEST(ThreadPool, EndsWhileWorkersSpinOrSleep) {
  for (const int64_t idle_us : {0, 10, 50, 100, 5000}) {
    for (int i = 0; i < 5; ++i) {
      ThreadPool pool(3);
      if (i % 2 == 0) pool.run([](int) {});
      sleep_us(idle_us);
    }
  }
}

std::vector<int> mask_of_this_thread() { return allowed_cpus(); }

// By thread, not by worker number: a part may be taken by another thread than its own.
std::map<std::thread::id, std::vector<int>> masks(ThreadPool& pool) {
  std::map<std::thread::id, std::vector<int>> seen;
  std::mutex mutex;
  const auto all = static_cast<size_t>(pool.size());
  for (int i = 0; i < 200 && seen.size() < all; ++i) {
    pool.run([&](int) {
      sleep_us(500);  // time for the others to take theirs
      const std::lock_guard lock(mutex);
      seen[std::this_thread::get_id()] = mask_of_this_thread();
    });
  }
  return seen;
}

TEST(ThreadPool, WorkersRunWhereTheyAreTold) {
  const std::vector<int> allowed = allowed_cpus();
  const std::vector<std::vector<int>> cpus = {{allowed.front()}, {allowed.back()}, allowed, {}};
  ThreadPool pool(4, cpus);
  std::map<std::vector<int>, int> count;
  for (const auto& [id, mask] : masks(pool)) {
    if (id == std::this_thread::get_id()) {
      EXPECT_EQ(mask, allowed) << "the caller's thread is not ours";
    } else {
      ++count[mask];
    }
  }
  std::map<std::vector<int>, int> want;
  for (const auto& mask : {std::vector<int>{allowed.back()}, allowed, allowed}) ++want[mask];
  EXPECT_EQ(count, want);
  EXPECT_EQ(allowed_cpus(), allowed);
}

TEST(ThreadPool, ARefusedPinIsAWarning) {
  std::vector<std::vector<int>> cpus(2);
  cpus[1] = {100000};  // no machine has it
  testing::internal::CaptureStderr();
  {
    ThreadPool pool(2, cpus);
    EXPECT_EQ(masks(pool).size(), 2U);
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find("cannot be pinned to CPU 100000"), std::string::npos);
}

TEST(ThreadPool, WorksWhereTheSystemGrantsFewerThreads) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's shadow does not fit a limit on address space";
#endif
  const auto limited = [] {
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = rlim_t{512} << 20;  // room for some stacks of 8 MiB
    setrlimit(RLIMIT_AS, &limit);
    ThreadPool pool(1000);
    std::atomic<int> calls{0};
    pool.run([&](int) { ++calls; });
    std::exit(calls == 1000 ? 0 : 1);
  };
  EXPECT_EXIT(limited(), testing::ExitedWithCode(0), "threads started");
}

class Quota : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "k3_quota_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    ASSERT_TRUE(write_file(root_ + path, text).ok());
  }
  std::string root_;
};

TEST_F(Quota, TheTightestGroupOnTheWayUp) {
  put("/proc/self/cgroup", "0::/a/b\n");
  EXPECT_EQ(cpu_quota(root_), INT_MAX);
  put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root_), INT_MAX);
  put("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");  // two and a half
  EXPECT_EQ(cpu_quota(root_), 3);
  put("/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 1);
}

TEST_F(Quota, VersionOneAndNonsense) {
  put("/proc/self/cgroup", "3:memory:/x\n4:cpu,cpuacct:/x\n");
  put("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root_), INT_MAX);
  put("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "400000\n");
  EXPECT_EQ(cpu_quota(root_), 4);
  put("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "none\n");
  EXPECT_EQ(cpu_quota(root_), INT_MAX);
}

}  // namespace
}  // namespace k3
