// Limits of the machine and of control groups, from made-up /proc and /sys trees.
#include "k3/base/memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "k3/base/file.h"

namespace k3 {
namespace {

class Memory : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "k3_memory_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
  }
  void put(const std::string& path, const std::string& text) {
    const std::string full = root_ + path;
    std::filesystem::create_directories(std::filesystem::path(full).parent_path());
    ASSERT_TRUE(write_file(full, text).ok());
  }
  std::string root_;
};

TEST_F(Memory, TheSystemsEstimate) {
  put("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    500 kB\n");
  EXPECT_EQ(available_memory_bytes(root_), 500 * 1024);
}

TEST_F(Memory, TheTightestGroupOnTheWayUp) {
  put("/proc/meminfo", "MemAvailable: 1000000 kB\n");
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  put("/sys/fs/cgroup/a/b/memory.current", "100\n");
  put("/sys/fs/cgroup/a/memory.max", "5000\n");
  put("/sys/fs/cgroup/a/memory.current", "2000\n");
  EXPECT_EQ(available_memory_bytes(root_), 3000);
  put("/sys/fs/cgroup/a/memory.stat", "anon 1500\nfile 900\nactive_file 100\ninactive_file 300\n");  // page cache but tmpfs
  EXPECT_EQ(available_memory_bytes(root_), 3400);
}

TEST_F(Memory, VersionOneAndOverfullGroups) {
  put("/proc/meminfo", "MemAvailable: 1000000 kB\n");
  put("/proc/self/cgroup", "3:cpu,cpuacct:/x\n7:hugetlb,memory:/x\n");
  put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "4096\n");
  put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "8192\n");
  EXPECT_EQ(available_memory_bytes(root_), 0);
}

TEST_F(Memory, CacheThatGrewWhileItWasReadLeavesNoGroupWithoutMemory) {
  put("/proc/meminfo", "MemAvailable: 1000000 kB\n");
  put("/proc/self/cgroup", "4:memory:/x\n");
  put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");  // version 1 for "none"
  put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "100000\n");
  put("/sys/fs/cgroup/memory/x/memory.stat", "total_inactive_file 90000\ntotal_active_file 20000\n");
  EXPECT_EQ(available_memory_bytes(root_), int64_t{1000000} * 1024);
  put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "300000\n");
  EXPECT_EQ(available_memory_bytes(root_), 300000);
}

TEST_F(Memory, AnOddNumberHidesNoLaterOne) {
  put("/proc/meminfo", "MemAvailable: 1000000 kB\n");
  put("/proc/self/cgroup", "0::/x\n");
  put("/sys/fs/cgroup/x/memory.max", "5000\n");
  put("/sys/fs/cgroup/x/memory.current", "4000\n");
  put("/sys/fs/cgroup/x/memory.stat", "anon 18446744073709551615\nactive_file 1000\ninactive_file 2000\n");
  EXPECT_EQ(available_memory_bytes(root_), 4000);
}

TEST_F(Memory, NothingReadableMeansNoLimit) {
  EXPECT_EQ(available_memory_bytes(root_), std::numeric_limits<int64_t>::max());
  EXPECT_GT(available_memory_bytes(), 0);
}

}  // namespace
}  // namespace k3
