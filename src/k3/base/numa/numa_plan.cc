#include "k3/base/numa/numa_plan.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "k3/base/check.h"

namespace k3 {
namespace {

// Splits `count` in proportion to the capacities (largest remainder, ties to the first), none above its own.
std::vector<int> share_out(int count, const std::vector<int>& capacity) {
  const int64_t total = std::accumulate(capacity.begin(), capacity.end(), int64_t{0});
  std::vector<int> shares(capacity.size(), 0);
  if (total == 0) return shares;
  std::vector<std::pair<int64_t, size_t>> remainders;
  int left = count;
  for (size_t i = 0; i < capacity.size(); ++i) {
    const int64_t product = int64_t{count} * capacity[i];
    shares[i] = static_cast<int>(product / total);
    left -= shares[i];
    if (product % total != 0) remainders.emplace_back(-(product % total), i);
  }
  std::sort(remainders.begin(), remainders.end());
  for (size_t i = 0; left > 0 && i < remainders.size(); ++i, --left) ++shares[remainders[i].second];
  return shares;
}

// A node's CPUs in the order in which they are given out: one of every core, then the others.
struct NodeCpus {
  std::vector<int> order;
  int cores = 0;
};

NodeCpus order_cpus(const Topology& topology, const NumaNode& node) {
  NodeCpus out;
  std::vector<int> later;
  std::set<int> seen;
  for (const int cpu : node.cpus) (seen.insert(topology.core(cpu)).second ? out.order : later).push_back(cpu);
  out.cores = static_cast<int>(out.order.size());
  out.order.insert(out.order.end(), later.begin(), later.end());
  return out;
}

// Workers on each node: cores first, then second threads of a core, then everything again.
std::vector<int> workers_by_node(const std::vector<NodeCpus>& nodes, int threads) {
  std::vector<int> cores, others, workers(nodes.size(), 0);
  for (const NodeCpus& node : nodes) {
    cores.push_back(node.cores);
    others.push_back(static_cast<int>(node.order.size()) - node.cores);
  }
  int left = threads;
  const auto give = [&](const std::vector<int>& capacity) {
    const int taken = std::min(left, std::accumulate(capacity.begin(), capacity.end(), 0));
    const std::vector<int> shares = share_out(taken, capacity);
    for (size_t i = 0; i < shares.size(); ++i) workers[i] += shares[i];
    left -= taken;
  };
  while (left > 0) {
    give(cores);
    give(others);
  }
  return workers;
}

// The node with memory that is nearest to the node at `index`; itself when nothing is known of memories.
int memory_of(const Topology& topology, size_t index) {
  const NumaNode& node = topology.nodes[index];
  if (node.memory_bytes > 0) return node.id;
  int best = node.id, best_distance = INT32_MAX;
  for (size_t i = 0; i < topology.nodes.size(); ++i) {
    if (topology.nodes[i].memory_bytes == 0) continue;
    const int distance = i < node.distances.size() ? node.distances[i] : INT32_MAX - 1;
    if (distance < best_distance) {
      best = topology.nodes[i].id;
      best_distance = distance;
    }
  }
  return best;
}

int64_t memory_bytes_of(const Topology& topology, int id) {
  for (const NumaNode& node : topology.nodes) {
    if (node.id == id) return node.memory_bytes;
  }
  return 0;
}

constexpr int kMostNodes = 1024;

// mbind(2) without libnuma. Modes and flags of <linux/mempolicy.h>.
bool set_policy(void* data, int64_t bytes, int mode, const std::vector<int>& nodes) {
  constexpr unsigned kMove = 2;  // MPOL_MF_MOVE
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMostNodes / kBits] = {};
  for (const int node : nodes) {
    if (node < 0 || node >= kMostNodes) return false;
    mask[node / kBits] |= 1UL << (node % kBits);
  }
  const long page = ::sysconf(_SC_PAGESIZE);
  const auto start = reinterpret_cast<uintptr_t>(data), step = static_cast<uintptr_t>(page);
  // Whole pages that begin inside: the one that the start cuts belongs to what lies before.
  const uintptr_t first = (start + step - 1) / step * step;
  const uintptr_t last = (start + static_cast<uintptr_t>(bytes) + step - 1) / step * step;
  if (last <= first) return true;
  return ::syscall(SYS_mbind, first, last - first, mode, mask, static_cast<unsigned long>(kMostNodes), kMove) == 0;
}

constexpr int kPreferred = 1, kInterleave = 3;  // MPOL_PREFERRED, MPOL_INTERLEAVE

}  // namespace

int64_t first_row_at(const StreamPart& part, int64_t start, int64_t point) {
  if (point <= start) return 0;
  const int64_t unit = part.row_bytes * part.grain;
  return std::min(part.rows, (point - start + unit - 1) / unit * part.grain);
}

RowRange rows_of_worker(std::span<const StreamPart> parts, size_t part, int worker, int workers) {
  K3_CHECK(part < parts.size() && worker >= 0 && worker < workers, "part {} of {}, worker {} of {}", part, parts.size(),
           worker, workers);
  int64_t start = 0, line = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i == part) start = line;
    line += parts[i].rows * parts[i].row_bytes;
  }
  return {first_row_at(parts[part], start, line * worker / workers),
          first_row_at(parts[part], start, line * (worker + 1) / workers)};
}

std::vector<int> NumaPlan::cpus() const {
  std::vector<int> out;
  for (const Worker& worker : workers) out.push_back(worker.cpu);
  return out;
}

NumaPlan plan_numa(const Topology& topology, int threads, int64_t weight_bytes) {
  K3_CHECK(threads >= 1 && weight_bytes >= 0, "a plan of {} threads and {} bytes", threads, weight_bytes);
  std::vector<NodeCpus> nodes;
  size_t cpus = 0;
  for (const NumaNode& node : topology.nodes) {
    nodes.push_back(order_cpus(topology, node));
    cpus += node.cpus.size();
  }
  NumaPlan plan;
  if (cpus == 0) {
    plan.workers.resize(static_cast<size_t>(threads));
    plan.shares = {{0, threads, weight_bytes, 0}};
    return plan;
  }
  const std::vector<int> counts = workers_by_node(nodes, threads);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const int memory = memory_of(topology, i);
    for (int w = 0; w < counts[i]; ++w) {
      const int cpu = nodes[i].order[static_cast<size_t>(w) % nodes[i].order.size()];
      plan.workers.push_back({cpu, topology.nodes[i].id, memory});
    }
  }
  for (const NumaPlan::Worker& worker : plan.workers) {
    const auto same = [&](const NumaPlan::Share& s) { return s.memory_node == worker.memory_node; };
    auto share = std::find_if(plan.shares.begin(), plan.shares.end(), same);
    if (share == plan.shares.end()) share = plan.shares.insert(share, {.memory_node = worker.memory_node});
    ++share->workers;
  }
  for (NumaPlan::Share& share : plan.shares) {
    share.weight_bytes = static_cast<int64_t>(static_cast<double>(weight_bytes) * share.workers / threads);
    const int64_t room = memory_bytes_of(topology, share.memory_node);
    if (room > 0) share.spilled_bytes = std::max<int64_t>(0, share.weight_bytes - room);
  }
  return plan;
}

std::vector<std::vector<int>> worker_cpus(const Topology& topology, const NumaPlan& plan, int quota_cpus) {
  size_t cpus = 0, nodes = 0;
  for (const NumaNode& node : topology.nodes) {
    cpus += node.cpus.size();
    nodes += node.cpus.empty() ? 0 : 1;
  }
  if (plan.workers.size() > cpus) return {};
  const bool every_cpu = plan.workers.size() == cpus && static_cast<size_t>(quota_cpus) >= cpus;
  if (!every_cpu && nodes <= 1) return {};
  std::vector<std::vector<int>> out;
  for (const NumaPlan::Worker& worker : plan.workers) {
    const auto own = std::find_if(topology.nodes.begin(), topology.nodes.end(),
                                  [&](const NumaNode& node) { return node.id == worker.node; });
    out.push_back(every_cpu ? std::vector<int>{worker.cpu} : own->cpus);
  }
  return out;
}

std::vector<NodeRows> rows_by_node(const NumaPlan& plan, std::span<const StreamPart> parts, size_t part) {
  std::vector<NodeRows> out;
  const int workers = static_cast<int>(plan.workers.size());
  for (int w = 0; w < workers; ++w) {
    const RowRange range = rows_of_worker(parts, part, w, workers);
    const int node = plan.workers[static_cast<size_t>(w)].memory_node;
    if (range.begin == range.end) continue;
    if (!out.empty() && out.back().memory_node == node) {
      out.back().rows.end = range.end;
    } else {
      out.push_back({node, range});
    }
  }
  return out;
}

bool bind_stream(const NumaPlan& plan, std::span<const StreamPart> parts) {
  if (!plan.several_memories()) return true;
  bool granted = true;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const NodeRows& range : rows_by_node(plan, parts, i)) {
      granted &= set_policy(static_cast<std::byte*>(parts[i].data) + range.rows.begin * parts[i].row_bytes,
                            (range.rows.end - range.rows.begin) * parts[i].row_bytes, kPreferred, {range.memory_node});
    }
  }
  return granted;
}

bool interleave(const NumaPlan& plan, void* data, int64_t bytes) {
  if (!plan.several_memories()) return true;
  std::vector<int> nodes;
  for (const NumaPlan::Share& share : plan.shares) nodes.push_back(share.memory_node);
  return set_policy(data, bytes, kInterleave, nodes);
}

}  // namespace k3
