// Reading a machine's description from folders that look like Linux's, and from broken ones.
#include "k3/base/numa/topology.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace k3 {
namespace {

namespace fs = std::filesystem;

class Topologies : public testing::Test {
 protected:
  Topologies() {
    std::string name = (fs::temp_directory_path() / "k3-numa-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    root_ = name;
  }
  ~Topologies() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  void put(const std::string& name, const std::string& text) {
    const fs::path path = fs::path(root_) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void put_node(int id, const std::string& cpus, int64_t kib, const std::string& distances) {
    const std::string folder = "node/node" + std::to_string(id) + "/";
    put(folder + "cpulist", cpus + "\n");
    put(folder + "meminfo",
        "Node " + std::to_string(id) + " MemTotal:       " + std::to_string(kib) + " kB\n" + "Node 0 MemFree: 1 kB\n");
    put(folder + "distance", distances + "\n");
  }
  // Two sockets of two cores of two threads; CPU 7 is offline.
  void put_machine() {
    put("cpu/online", "0-6\n");
    put("node/possible", "0-1\n");
    put_node(0, "0-1,4-5", 1024, "10 21");
    put_node(1, "2-3,6-7", 2048, "21 10");
    for (int cpu = 0; cpu < 7; ++cpu) {
      put("cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
          std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4) + "\n");
    }
  }
  std::string root_;
  const std::vector<int> all_ = {0, 1, 2, 3, 4, 5, 6, 7};
};

TEST_F(Topologies, TwoSockets) {
  put_machine();
  const Topology t = read_topology(root_, all_).value();
  ASSERT_EQ(t.nodes.size(), 2u);
  EXPECT_EQ(t.nodes[0].cpus, (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(t.nodes[1].cpus, (std::vector<int>{2, 3, 6}));  // without the offline one
  EXPECT_EQ(t.nodes[1].memory_bytes, 2048 * 1024);
  EXPECT_EQ(t.nodes[1].distances, (std::vector<int>{21, 10}));
  EXPECT_EQ(t.core(5), 1);
  EXPECT_EQ(t.core(77), 77);
}

TEST_F(Topologies, TheAffinityMaskCuts) {
  put_machine();
  const std::vector<int> allowed = {1, 6};
  const Topology t = read_topology(root_, allowed).value();
  EXPECT_EQ(t.nodes[0].cpus, (std::vector<int>{1}));
  EXPECT_EQ(t.nodes[1].cpus, (std::vector<int>{6}));
}

TEST_F(Topologies, NodesInAnyOrderWithGaps) {
  put("cpu/online", "0-1\n");
  put_node(10, "1", 8, "20 10 30");
  put_node(2, "0", 8, "10 20 30");
  put_node(11, "", 4096, "30 30 10");  // memory alone
  const Topology t = read_topology(root_, all_).value();
  ASSERT_EQ(t.nodes.size(), 3u);
  EXPECT_EQ(t.nodes[0].id, 2);
  EXPECT_EQ(t.nodes[2].id, 11);
  EXPECT_TRUE(t.nodes[2].cpus.empty());
}

TEST_F(Topologies, NoNodesIsNotFound) {
  EXPECT_EQ(read_topology(root_, all_).error().code, Code::not_found);
  put("node/has_cpu", "0\n");
  EXPECT_EQ(read_topology(root_, all_).error().code, Code::not_found);
}

TEST_F(Topologies, WhatIsWrongIsNamed) {
  const struct {
    const char *file, *text;
  } kBroken[] = {
      {"cpu/online", "0-"},
      {"cpu/online", "zero"},
      {"node/node0/cpulist", "5-2"},
      {"node/node0/cpulist", "0-99999999"},
      {"node/node0/cpulist", "0,,1"},
      {"node/node0/cpulist", "0,"},
      {"node/node0/cpulist", "-3"},
      {"node/node0/cpulist", "99999999999999999999"},
      {"node/node1/meminfo", ""},
      {"node/node1/meminfo", "Node 1 MemTotal: much kB"},
      {"node/node1/meminfo", "Node 1 MemTotal:"},
      {"node/node1/meminfo", "Node 1 MemTotal: 9223372036854775807 kB"},
      {"node/node1/distance", "10"},
      {"node/node1/distance", "10 20 30"},
      {"node/node1/distance", "ten 20"},
      {"node/node1/distance", "-1 20"},
      {"cpu/cpu0/topology/thread_siblings_list", "\xff"},
  };
  for (const auto& broken : kBroken) {
    put_machine();
    put(broken.file, broken.text);
    const auto t = read_topology(root_, all_);
    ASSERT_FALSE(t.ok()) << broken.file << ": " << broken.text;
    EXPECT_EQ(t.error().code, Code::corrupt);
    EXPECT_NE(t.error().message.find(broken.file), std::string::npos) << t.error().message;
  }
}

// The kernel's own files, whose sizes are not their lengths.
TEST_F(Topologies, OfThisKernel) {
  const std::string sysfs = "/sys/devices/system";
  if (!fs::exists(sysfs + "/node/node0/meminfo")) GTEST_SKIP() << "the kernel describes no nodes";
  const auto t = read_topology(sysfs, allowed_cpus());
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_GT(t->nodes[0].memory_bytes, 0);
}

TEST_F(Topologies, CpuLists) {
  EXPECT_EQ(parse_cpu_list("").value(), std::vector<int>());
  EXPECT_EQ(parse_cpu_list("3").value(), std::vector<int>{3});
  EXPECT_EQ(parse_cpu_list("8,0-2,1-3").value(), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_FALSE(parse_cpu_list(" 1").ok());
}

TEST_F(Topologies, LastLevelCaches) {
  EXPECT_EQ(last_level_cache_bytes(root_, all_), 0);
  for (int cpu = 0; cpu < 4; ++cpu) {
    const std::string folder = "cpu/cpu" + std::to_string(cpu) + "/cache/";
    put(folder + "index2/size", "1024K\n");
    put(folder + "index2/shared_cpu_list", std::to_string(cpu) + "\n");
    put(folder + "index3/size", "32768K\n");
    put(folder + "index3/shared_cpu_list", cpu < 2 ? "0-1\n" : "2-3\n");
  }
  EXPECT_EQ(last_level_cache_bytes(root_, all_), 64 << 20);
  EXPECT_EQ(last_level_cache_bytes(root_, std::vector<int>{2}), 32 << 20);
  put("cpu/cpu2/cache/index3/size", "big\n");
  EXPECT_EQ(last_level_cache_bytes(root_, std::vector<int>{2}), 0);
}

}  // namespace
}  // namespace k3
