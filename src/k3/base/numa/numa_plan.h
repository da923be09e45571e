// Purpose:  which CPU each worker of a pool is pinned to, and which node's memory holds which rows of a weight.
// Shapes:   rows of weights that are read as one line of bytes, as ops::linear_many splits them.
// Units:    bytes.
// Memory:   plain values; bind_stream moves pages that exist and settles where new ones come from.
// Threads:  pure functions, except bind_stream and interleave, which concern the given memory alone.
// Errors:   none. Placement is a wish: where the system refuses it, memory stays where it is.
// Source:   decoding reads each weight once a token, so that a machine of several memories is as fast as all of them
// together
//           only if each worker's rows lie in its own. Threads are spread over the nodes in proportion to their cores, whole
//           cores before second threads of a core, because bandwidth is what is short.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "k3/base/numa/topology.h"

namespace k3 {

struct RowRange {
  int64_t begin = 0, end = 0;
  bool operator==(const RowRange&) const = default;
};

// A matrix of a stream: matrices that meet one input lie on one line of bytes, of which every worker takes an equal share;
// borders move up to whole grains of rows.
struct StreamPart {
  void* data = nullptr;  // not read: only bind_stream uses the address
  int64_t rows = 0, row_bytes = 0, grain = 1;
};
// The first row, a whole number of grains, at or after a point of the line on which the part begins at `start`.
int64_t first_row_at(const StreamPart& part, int64_t start, int64_t point);
RowRange rows_of_worker(std::span<const StreamPart> parts, size_t part, int worker, int workers);

struct NumaPlan {
  struct Worker {
    int cpu = 0, node = 0;
    int memory_node = 0;  // the nearest that has memory
  };
  struct Share {
    int memory_node = 0, workers = 0;
    int64_t weight_bytes = 0, spilled_bytes = 0;  // what its memory cannot hold lies elsewhere
  };
  std::vector<Worker> workers;  // by node, so that a node's rows are one range
  std::vector<Share> shares;    // in the order of the workers

  std::vector<int> cpus() const;
  bool several_memories() const { return shares.size() > 1; }
};

// threads >= 1; with more threads than CPUs some share one. A topology without CPUs gives CPU 0.
NumaPlan plan_numa(const Topology& topology, int threads, int64_t weight_bytes);

// Where the thread of each worker may run, for ThreadPool; an empty answer leaves that to the system.
// With a worker for every CPU each gets its own: whatever else runs, there is no better place. With fewer, the system knows
// which CPUs are idle and we do not (two of our own processes would take the same ones), so a worker is held only on its
// node, where its rows lie, and on a machine of one node not at all. More workers than CPUs, or less time than the CPUs
// have (quota_cpus, cgroup.h), are never held on a CPU.
std::vector<std::vector<int>> worker_cpus(const Topology& topology, const NumaPlan& plan, int quota_cpus);

struct NodeRows {
  int memory_node = 0;
  RowRange rows;
  bool operator==(const NodeRows&) const = default;
};

// The rows of a part that each memory should hold: ranges in ascending order, without empty ones.
std::vector<NodeRows> rows_by_node(const NumaPlan& plan, std::span<const StreamPart> parts, size_t part);

// Asks the system to put each row where the plan wants it. A page on a border goes with what lies before it.
// True when every request was granted. Does nothing, truthfully, with one memory.
bool bind_stream(const NumaPlan& plan, std::span<const StreamPart> parts);

// The same for what every worker reads in no fixed split (experts): pages in turn.
bool interleave(const NumaPlan& plan, void* data, int64_t bytes);

}  // namespace k3
