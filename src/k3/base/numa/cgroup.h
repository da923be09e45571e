// The control groups that a process is in, and what they grant it of the processors: a container of 2 CPUs on a machine of
// 64 is seen as what it is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace k3 {

struct CgroupFolder {
  std::string path;      // ends in '/'
  bool unified = false;  // version 2
};

// The folders of this process's groups of a controller ("memory", "cpu"), each followed by the groups above it; `root` is
// "" or a copy for tests. Empty where the system says nothing.
std::vector<CgroupFolder> cgroup_folders(const std::string& root, std::string_view controller);

// CPUs that the tightest group grants in time, rounded up; INT_MAX without a limit.
int cpu_quota(const std::string& root = "");

}  // namespace k3
