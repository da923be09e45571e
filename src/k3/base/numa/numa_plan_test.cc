// Plans on described machines.
#include "k3/base/numa/numa_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "k3/base/threads.h"

namespace k3 {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::vector<int> range(int first, int last) {
  std::vector<int> out;
  for (int i = first; i <= last; ++i) out.push_back(i);
  return out;
}

Topology machine(std::vector<NumaNode> nodes) {
  Topology t;
  t.nodes = std::move(nodes);
  for (size_t i = 0; i < t.nodes.size(); ++i) {
    for (size_t j = 0; t.nodes[i].distances.size() < t.nodes.size(); ++j) t.nodes[i].distances.push_back(i == j ? 10 : 21);
  }
  return t;
}

std::map<int, int> workers_by_node(const NumaPlan& plan) {
  std::map<int, int> count;
  for (const auto& worker : plan.workers) ++count[worker.node];
  return count;
}

std::vector<NodeRows> split(const NumaPlan& plan, int64_t rows, int64_t grain) {
  const StreamPart part{.rows = rows, .row_bytes = 512, .grain = grain};
  return rows_by_node(plan, std::span(&part, 1), 0);
}

TEST(NumaPlan, OneNodeIsAPinList) {
  const Topology t = machine({{0, range(0, 3), 16 * kGiB, {}}});
  const NumaPlan plan = plan_numa(t, 3, kGiB);
  EXPECT_EQ(plan.cpus(), range(0, 2));
  EXPECT_FALSE(plan.several_memories());
  ASSERT_EQ(plan.shares.size(), 1u);
  EXPECT_EQ(plan.shares[0].weight_bytes, kGiB);
  EXPECT_EQ(plan.shares[0].spilled_bytes, 0);
  EXPECT_EQ(split(plan, 100, 8), (std::vector<NodeRows>{{0, {0, 100}}}));
  int64_t untouched = 7;
  const StreamPart part{.data = &untouched, .rows = 1, .row_bytes = 8};
  EXPECT_TRUE(bind_stream(plan, std::span(&part, 1)));
  EXPECT_TRUE(interleave(plan, &untouched, 8));
}

TEST(NumaPlan, TwoSocketsShareEvenly) {
  const Topology t = machine({{0, range(0, 7), 64 * kGiB, {}}, {1, range(8, 15), 64 * kGiB, {}}});
  const NumaPlan all = plan_numa(t, 16, 32 * kGiB);
  EXPECT_EQ(all.cpus(), range(0, 15));
  EXPECT_TRUE(all.several_memories());
  EXPECT_EQ(split(all, 1600, 1), (std::vector<NodeRows>{{0, {0, 800}}, {1, {800, 1600}}}));
  EXPECT_EQ(all.shares[0].weight_bytes, 16 * kGiB);
  EXPECT_EQ(all.shares[1].weight_bytes, 16 * kGiB);
  // Few threads are spread as well: two memories feed two threads better than one.
  EXPECT_EQ(plan_numa(t, 2, 0).cpus(), (std::vector<int>{0, 8}));
  EXPECT_EQ(plan_numa(t, 1, 0).cpus(), (std::vector<int>{0}));
  EXPECT_EQ(workers_by_node(plan_numa(t, 5, 0)), (std::map<int, int>{{0, 3}, {1, 2}}));
}

TEST(NumaPlan, SecondThreadsOfACoreComeLast) {
  Topology t = machine({{0, {0, 1, 4, 5}, kGiB, {}}, {1, {2, 3, 6, 7}, kGiB, {}}});
  for (int cpu = 0; cpu < 8; ++cpu) t.core_of[cpu] = cpu % 4;
  EXPECT_EQ(plan_numa(t, 4, 0).cpus(), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(plan_numa(t, 6, 0).cpus(), (std::vector<int>{0, 1, 4, 2, 3, 6}));
  EXPECT_EQ(plan_numa(t, 8, 0).cpus(), (std::vector<int>{0, 1, 4, 5, 2, 3, 6, 7}));
}

TEST(NumaPlan, FourUnevenNodes) {
  const Topology t = machine(
      {{0, range(0, 7), kGiB, {}}, {1, range(8, 9), kGiB, {}}, {2, range(10, 13), kGiB, {}}, {3, range(14, 15), kGiB, {}}});
  EXPECT_EQ(workers_by_node(plan_numa(t, 16, 0)), (std::map<int, int>{{0, 8}, {1, 2}, {2, 4}, {3, 2}}));
  EXPECT_EQ(workers_by_node(plan_numa(t, 8, 0)), (std::map<int, int>{{0, 4}, {1, 1}, {2, 2}, {3, 1}}));
  // No node gets more than it has, whatever the rounding.
  for (int threads = 1; threads <= 16; ++threads) {
    const NumaPlan plan = plan_numa(t, threads, 0);
    const std::vector<int> cpus = plan.cpus();
    EXPECT_EQ(static_cast<int>(cpus.size()), threads);
    EXPECT_EQ(std::set<int>(cpus.begin(), cpus.end()).size(), cpus.size()) << threads << " threads, a CPU twice";
  }
}

TEST(NumaPlan, MoreThreadsThanCpus) {
  const Topology t = machine({{0, range(0, 1), kGiB, {}}, {1, range(2, 2), kGiB, {}}});
  const NumaPlan plan = plan_numa(t, 7, 0);
  std::map<int, int> load;
  for (const int cpu : plan.cpus()) ++load[cpu];
  EXPECT_EQ(plan.workers.size(), 7u);
  for (const auto& [cpu, workers] : load) EXPECT_LE(workers, 3) << cpu;
  EXPECT_EQ(load.size(), 3u);
}

TEST(NumaPlan, ANodeWithoutMemoryReadsTheNearest) {
  const Topology t = machine({{0, range(0, 1), 8 * kGiB, {10, 20, 30}},
                              {1, range(2, 3), 0, {20, 10, 15}},
                              {2, range(4, 5), 8 * kGiB, {30, 15, 10}}});
  const NumaPlan plan = plan_numa(t, 6, 6 * kGiB);
  EXPECT_EQ(plan.workers[2].memory_node, 2);
  ASSERT_EQ(plan.shares.size(), 2u);
  EXPECT_EQ(plan.shares[1].workers, 4);
  EXPECT_EQ(plan.shares[1].weight_bytes, 4 * kGiB);
  EXPECT_EQ(split(plan, 60, 1), (std::vector<NodeRows>{{0, {0, 20}}, {2, {20, 60}}}));
}

TEST(NumaPlan, MemoryAloneGetsNoWorker) {
  const Topology t = machine({{0, range(0, 3), 8 * kGiB, {}}, {4, {}, 64 * kGiB, {}}});
  const NumaPlan plan = plan_numa(t, 4, 10 * kGiB);
  EXPECT_EQ(workers_by_node(plan), (std::map<int, int>{{0, 4}}));
  EXPECT_EQ(plan.shares[0].spilled_bytes, 2 * kGiB);  // which the system will put on the other
}

TEST(NumaPlan, NothingKnown) {
  EXPECT_EQ(plan_numa({}, 2, 5).cpus(), (std::vector<int>{0, 0}));
  const Topology t = machine({{0, range(0, 1), 0, {}}});
  EXPECT_EQ(plan_numa(t, 2, kGiB).workers[1].memory_node, 0);
  EXPECT_EQ(plan_numa(t, 2, kGiB).shares[0].spilled_bytes, 0);  // unknown is not full
}

TEST(NumaPlan, ThisMachine) {
  const Topology t = this_machine();
  const int threads = available_threads();
  const std::vector<int> allowed = allowed_cpus();
  EXPECT_EQ(static_cast<int>(allowed.size()), threads);
  for (const int cpu : plan_numa(t, threads, kGiB).cpus()) {
    EXPECT_NE(std::find(allowed.begin(), allowed.end(), cpu), allowed.end());
  }
}

// Matrices that meet one input are one line of bytes: a border may fall into any of them.
TEST(NumaPlan, AStreamIsSplitByBytes) {
  const std::vector<StreamPart> parts = {
      {.rows = 100, .row_bytes = 64}, {.rows = 10, .row_bytes = 320}, {.rows = 50, .row_bytes = 64}};
  // 6,400 + 3,200 + 3,200 bytes; the middle is the end of the first part.
  EXPECT_EQ(rows_of_worker(parts, 0, 0, 2), (RowRange{0, 100}));
  EXPECT_EQ(rows_of_worker(parts, 1, 0, 2), (RowRange{0, 0}));
  EXPECT_EQ(rows_of_worker(parts, 1, 1, 2), (RowRange{0, 10}));
  EXPECT_EQ(rows_of_worker(parts, 2, 1, 2), (RowRange{0, 50}));
  const Topology t = machine({{0, range(0, 0), kGiB, {}}, {1, range(1, 1), kGiB, {}}});
  const NumaPlan plan = plan_numa(t, 2, 0);
  EXPECT_EQ(rows_by_node(plan, parts, 0), (std::vector<NodeRows>{{0, {0, 100}}}));
  EXPECT_EQ(rows_by_node(plan, parts, 2), (std::vector<NodeRows>{{1, {0, 50}}}));
}

// Kernels take their rows in grains of their own; placement uses a small one. The borders may differ by less than a grain.
TEST(NumaPlan, GrainsMoveABorderByLessThanOne) {
  for (const int64_t grain : {4, 16, 32}) {
    const StreamPart exact{.rows = 1000, .row_bytes = 34}, coarse{.rows = 1000, .row_bytes = 34, .grain = grain};
    for (int64_t point = 0; point < 40000; point += 7) {
      const int64_t row = first_row_at(exact, 512, point), moved = first_row_at(coarse, 512, point);
      EXPECT_TRUE(moved >= row && moved < row + grain && (moved % grain == 0 || moved == 1000)) << point;
      // The row is the first that begins at or after the point.
      EXPECT_TRUE(row == 1000 || 512 + row * 34 >= point);
      EXPECT_TRUE(row == 0 || 512 + (row - 1) * 34 < point);
    }
  }
}

TEST(NumaPlan, PinsOnlyWhereNoOtherPlaceIsBetter) {
  using Cpus = std::vector<std::vector<int>>;
  const auto pins = [](const Topology& t, int threads, int quota) {
    return worker_cpus(t, plan_numa(t, threads, 0), quota);
  };
  const Topology one = machine({{0, range(0, 3), kGiB, {}}});
  EXPECT_EQ(pins(one, 4, 1000), (Cpus{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(pins(one, 4, 4), (Cpus{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(pins(one, 3, 1000), Cpus());  // another process may want the same three
  EXPECT_EQ(pins(one, 5, 1000), Cpus());
  EXPECT_EQ(pins(one, 4, 2), Cpus());
  const Topology two = machine({{0, range(0, 1), kGiB, {}}, {1, range(2, 3), kGiB, {}}});
  EXPECT_EQ(pins(two, 4, 1000), (Cpus{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(pins(two, 2, 1000), (Cpus{{0, 1}, {2, 3}}));
  EXPECT_EQ(pins(two, 4, 2), (Cpus{{0, 1}, {0, 1}, {2, 3}, {2, 3}}));
  EXPECT_EQ(pins(two, 5, 1000), Cpus());
  EXPECT_EQ(pins({}, 2, 1000), Cpus());
}

TEST(NumaPlan, EveryRowHasOneWorker) {
  for (const int workers : {1, 2, 3, 5, 8, 64}) {
    for (const int64_t grain : {1, 4, 16}) {
      const std::vector<StreamPart> parts = {{.rows = 7, .row_bytes = 100, .grain = grain},
                                             {.rows = 1000, .row_bytes = 34, .grain = grain},
                                             {.rows = 0, .row_bytes = 8, .grain = grain},
                                             {.rows = 48, .row_bytes = 4096, .grain = grain}};
      for (size_t part = 0; part < parts.size(); ++part) {
        int64_t next = 0;
        for (int w = 0; w < workers; ++w) {
          const RowRange r = rows_of_worker(parts, part, w, workers);
          EXPECT_EQ(r.begin, next) << part << " " << w << " of " << workers;
          EXPECT_TRUE(r.begin % grain == 0 || r.begin == parts[part].rows);
          next = r.end;
        }
        EXPECT_EQ(next, parts[part].rows);
      }
    }
  }
}

}  // namespace
}  // namespace k3
