#include "k3/base/numa/topology.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <set>
#include <thread>

#include "k3/base/file.h"
#include "k3/base/units.h"

namespace k3 {
namespace {

constexpr const char* kSysfs = "/sys/devices/system";
constexpr int kMostCpus = 1 << 16;  // far above any machine: a list cannot make us allocate without bound
constexpr size_t kMostFileBytes = 1 << 16;

// Not read_file: these files say that they have a page and end earlier.
Result<std::string> read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(Code::not_found, "{}: cannot open", path);
  std::string text(kMostFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad() || text.size() > kMostFileBytes) return fail(Code::corrupt, "{}: cannot be read", path);
  return text;
}

bool take_number(std::string_view& text, int& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || out < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

Result<std::vector<int>> read_cpu_list(const std::string& path) {
  K3_TRY_ASSIGN(const std::string text, read_text(path));
  auto list = parse_cpu_list(trimmed(text));
  if (!list.ok()) return fail(Code::corrupt, "{}: {}", path, list.error().message);
  return list;
}

// "node0", "node12": nothing else in that folder.
std::vector<int> node_ids(const std::string& folder) {
  std::vector<int> ids;
  DIR* const directory = ::opendir(folder.c_str());
  if (directory == nullptr) return ids;
  while (const dirent* entry = ::readdir(directory)) {
    std::string_view name = entry->d_name;
    int id = 0;
    if (!name.starts_with("node")) continue;
    name.remove_prefix(4);
    if (take_number(name, id) && name.empty() && id < kMostCpus) ids.push_back(id);
  }
  ::closedir(directory);
  std::sort(ids.begin(), ids.end());
  return ids;
}

// "Node 0 MemTotal:       16315168 kB"
Result<int64_t> read_memory(const std::string& path) {
  K3_TRY_ASSIGN(const std::string text, read_text(path));
  const size_t at = text.find("MemTotal:");
  if (at == std::string::npos) return fail(Code::corrupt, "{}: no MemTotal", path);
  const size_t digit = text.find_first_not_of(' ', at + 9);
  int64_t kib = 0;
  const auto error = digit == std::string::npos ? std::errc::invalid_argument
                                                : std::from_chars(text.data() + digit, text.data() + text.size(), kib).ec;
  if (error != std::errc() || kib < 0 || kib > INT64_MAX / 1024)
    return fail(Code::corrupt, "{}: MemTotal is no number", path);
  return kib * 1024;
}

Result<std::vector<int>> read_distances(const std::string& path, size_t nodes) {
  K3_TRY_ASSIGN(const std::string text, read_text(path));
  std::string_view rest = trimmed(text);
  std::vector<int> distances;
  while (!rest.empty()) {
    int value = 0;
    if (!take_number(rest, value)) return fail(Code::corrupt, "{}: '{}' is no distance", path, rest.substr(0, 16));
    distances.push_back(value);
    while (rest.starts_with(' ')) rest.remove_prefix(1);
  }
  if (distances.size() != nodes) {
    return fail(Code::corrupt, "{}: {} distances for {} nodes", path, distances.size(), nodes);
  }
  return distances;
}

}  // namespace

Result<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  std::string_view rest = text;
  while (!rest.empty()) {
    int first = 0;
    if (!take_number(rest, first)) return fail(Code::corrupt, "'{}' is no list of CPUs", text.substr(0, 40));
    int last = first;
    if (rest.starts_with('-')) {
      rest.remove_prefix(1);
      if (!take_number(rest, last)) return fail(Code::corrupt, "'{}' is no list of CPUs", text.substr(0, 40));
    }
    if (last < first || last >= kMostCpus) return fail(Code::corrupt, "CPUs {}-{} cannot be", first, last);
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (rest.empty()) break;
    if (!rest.starts_with(',') || rest.size() == 1)
      return fail(Code::corrupt, "'{}' is no list of CPUs", text.substr(0, 40));
    rest.remove_prefix(1);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

Result<Topology> read_topology(const std::string& sysfs, std::span<const int> allowed) {
  const std::vector<int> ids = node_ids(sysfs + "/node");
  if (ids.empty()) return fail(Code::not_found, "{}/node describes no node", sysfs);
  K3_TRY_ASSIGN(const std::vector<int> online, read_cpu_list(sysfs + "/cpu/online"));
  Topology topology;
  for (const int id : ids) {
    const std::string folder = fmt::format("{}/node/node{}/", sysfs, id);
    NumaNode node;
    node.id = id;
    K3_TRY_ASSIGN(const std::vector<int> listed, read_cpu_list(folder + "cpulist"));
    for (const int cpu : listed) {
      const bool usable = std::binary_search(online.begin(), online.end(), cpu) &&
                          std::find(allowed.begin(), allowed.end(), cpu) != allowed.end();
      if (usable) node.cpus.push_back(cpu);
    }
    K3_TRY_ASSIGN(node.memory_bytes, read_memory(folder + "meminfo"));
    K3_TRY_ASSIGN(node.distances, read_distances(folder + "distance", ids.size()));
    for (const int cpu : node.cpus) {
      // Not there for a core that is alone in some virtual machines.
      const std::string path = fmt::format("{}/cpu/cpu{}/topology/thread_siblings_list", sysfs, cpu);
      if (!path_exists(path)) continue;
      K3_TRY_ASSIGN(const std::vector<int> siblings, read_cpu_list(path));
      topology.core_of[cpu] = siblings.empty() ? cpu : siblings.front();
    }
    topology.nodes.push_back(std::move(node));
  }
  return topology;
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  // A machine of more CPUs than the set holds.
  for (unsigned cpu = 0; cpus.empty() && cpu < std::max(1U, std::thread::hardware_concurrency()); ++cpu) {
    cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

Topology this_machine() {
  const std::vector<int> allowed = allowed_cpus();
  auto topology = read_topology(kSysfs, allowed);
  const auto has_cpus = [](const NumaNode& node) { return !node.cpus.empty(); };
  if (topology.ok() && std::any_of(topology->nodes.begin(), topology->nodes.end(), has_cpus)) return *std::move(topology);
  Topology one;
  one.nodes.push_back({.id = 0, .cpus = allowed, .memory_bytes = 0, .distances = {}});
  return one;
}

int64_t last_level_cache_bytes(const std::string& sysfs, std::span<const int> cpus) {
  std::set<std::string> seen;
  int64_t sum = 0;
  for (const int cpu : cpus) {
    for (int index = 8; index-- > 0;) {  // the highest that is there is the last level
      const std::string folder = fmt::format("{}/cpu/cpu{}/cache/index{}/", sysfs, cpu, index);
      if (!path_exists(folder + "size")) continue;
      const auto shared = read_text(folder + "shared_cpu_list");
      const auto size = read_text(folder + "size");  // "32768K"
      const auto bytes = parse_bytes(trimmed(size.ok() ? *size : ""));
      if (shared.ok() && bytes.ok() && seen.insert(*shared).second) sum += *bytes;
      break;
    }
  }
  return sum;
}

int64_t last_level_cache_bytes() { return last_level_cache_bytes(kSysfs, allowed_cpus()); }

}  // namespace k3
