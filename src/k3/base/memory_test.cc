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
    root_ = testing::TempDir() + "k3_memory_test";
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
}

TEST_F(Memory, VersionOneAndOverfullGroups) {
  put("/proc/meminfo", "MemAvailable: 1000000 kB\n");
  put("/proc/self/cgroup", "3:cpu,cpuacct:/x\n7:hugetlb,memory:/x\n");
  put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "4096\n");
  put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "8192\n");
  EXPECT_EQ(available_memory_bytes(root_), 0);
}

TEST_F(Memory, NothingReadableMeansNoLimit) {
  EXPECT_EQ(available_memory_bytes(root_), std::numeric_limits<int64_t>::max());
  EXPECT_GT(available_memory_bytes(), 0);
}

TEST_F(Memory, PageCacheOfAGroupIsRoom) {
  put("/proc/self/cgroup", "0::/a\n");
  put("/sys/fs/cgroup/a/memory.max", "5000\n");
  put("/sys/fs/cgroup/a/memory.current", "4900\n");
  put("/sys/fs/cgroup/a/memory.stat", "anon 1000\nfile 3900\ninactive_file 3000\nactive_file 800\n");
  EXPECT_EQ(available_memory_bytes(root_), 3900);
  // The first version's short names are the group's own pages, its usage is that of the whole subtree.
  put("/proc/self/cgroup", "7:memory:/x\n");
  put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "5000\n");
  put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "4900\n");
  put("/sys/fs/cgroup/memory/x/memory.stat", "inactive_file 5\ntotal_inactive_file 2000\ntotal_active_file 500\n");
  EXPECT_EQ(available_memory_bytes(root_), 2600);
}

}  // namespace
}  // namespace k3
