#include "k3/base/numa/cgroup.h"

#include <algorithm>
#include <climits>
#include <fstream>

namespace k3 {
namespace {

// A quota of microseconds in each period; text that is no limit ("max", -1) or no number grants everything.
int cpus_of(std::istream& quota, std::istream& period) {
  long long quota_us = 0, period_us = 0;
  if (!(quota >> quota_us) || !(period >> period_us) || quota_us <= 0 || period_us <= 0) return INT_MAX;
  return static_cast<int>(std::min<long long>(INT_MAX, (quota_us - 1) / period_us + 1));
}

}  // namespace

std::vector<CgroupFolder> cgroup_folders(const std::string& root, std::string_view controller) {
  std::vector<CgroupFolder> folders;
  std::ifstream in(root + "/proc/self/cgroup");
  std::string line;
  // Lines read "0::/a/b" (v2) or "7:memory,cpu:/a/b" (v1).
  while (std::getline(in, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    const std::string name(controller);
    if (!unified && ("," + controllers + ",").find("," + name + ",") == std::string::npos) continue;
    const std::string mount = root + "/sys/fs/cgroup" + (unified ? "" : "/" + name);
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    for (;;) {
      folders.push_back({mount + group + "/", unified});
      const size_t slash = group.rfind('/');
      if (group.empty() || slash == std::string::npos) break;
      group.resize(slash);
    }
  }
  return folders;
}

int cpu_quota(const std::string& root) {
  int cpus = INT_MAX;
  for (const CgroupFolder& folder : cgroup_folders(root, "cpu")) {
    if (folder.unified) {
      std::ifstream both(folder.path + "cpu.max");  // "200000 100000"
      cpus = std::min(cpus, cpus_of(both, both));
    } else {
      std::ifstream quota(folder.path + "cpu.cfs_quota_us"), period(folder.path + "cpu.cfs_period_us");
      cpus = std::min(cpus, cpus_of(quota, period));
    }
  }
  return cpus;
}

}  // namespace k3
