// Purpose:  which CPUs, cores and memories this machine has and this process may use.
// Shapes:   none.
// Units:    bytes; distances as the firmware gives them (10 is near).
// Memory:   plain values.
// Threads:  pure functions of the files read.
// Errors:   not_found when the system describes no nodes; corrupt, naming the file, for text that cannot be a description.
//           this_machine fails never: what cannot be read is one node of all CPUs.
// Source:   Linux /sys/devices/system/{node,cpu}.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3 {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;       // online and allowed, ascending; empty for memory alone
  int64_t memory_bytes = 0;    // 0 for CPUs alone
  std::vector<int> distances;  // to every node of the topology, in its order; empty: unknown
};

struct Topology {
  std::vector<NumaNode> nodes;  // ascending ids
  std::map<int, int> core_of;   // CPU -> the lowest CPU of its core; a CPU that is missing is its own core

  int core(int cpu) const {
    const auto found = core_of.find(cpu);
    return found == core_of.end() ? cpu : found->second;
  }
};

// "0-3,8,10-11"; an empty line is an empty list.
Result<std::vector<int>> parse_cpu_list(std::string_view text);

// `sysfs` is /sys/devices/system, or a copy for tests; `allowed` the CPUs of this process.
Result<Topology> read_topology(const std::string& sysfs, std::span<const int> allowed);

std::vector<int> allowed_cpus();  // by the affinity mask
Topology this_machine();

// The sum of the last-level caches that the given CPUs reach; 0 when the system does not say.
int64_t last_level_cache_bytes(const std::string& sysfs, std::span<const int> cpus);
int64_t last_level_cache_bytes();

}  // namespace k3
