#include "k3/base/memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace k3 {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream in(path);
  std::string word;
  if (!(in >> word)) return std::nullopt;  // "max" means no limit and is not a number either
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

// "MemAvailable:   23456 kB"
int64_t system_available(const std::string& root) {
  std::ifstream in(root + "/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  while (in >> name >> kib) {
    if (name == "MemAvailable:") return kib * 1024;
    in.ignore(64, '\n');
  }
  return kUnknown;
}

// Page cache counts as used but is given back under pressure: the two "..._file" lists of a memory.stat (v1 prefixes the
// sums over child groups with "total_"). tmpfs pages are on neither, and cannot be given back.
int64_t cached(const std::string& path, const std::string& prefix) {
  std::ifstream in(path);
  std::string name;
  int64_t value = 0, sum = 0;
  while (in >> name >> value) {
    if (name == prefix + "active_file" || name == prefix + "inactive_file") sum += value;
  }
  return sum;
}

struct GroupFiles {
  const char *limit, *usage, *stat_prefix;
};

// Room of one control group and all groups above it.
int64_t room_upwards(const std::string& mount, std::string group, const GroupFiles& files) {
  int64_t room = kUnknown;
  for (;;) {
    const std::string folder = mount + group + "/";
    const auto limit = read_number(folder + files.limit), usage = read_number(folder + files.usage);
    if (limit && usage) {
      room = std::min(room, std::max<int64_t>(0, *limit - *usage + cached(folder + "memory.stat", files.stat_prefix)));
    }
    const size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return room;
    group.resize(slash);
  }
}

int64_t group_available(const std::string& root) {
  std::ifstream in(root + "/proc/self/cgroup");
  std::string line;
  int64_t room = kUnknown;
  // Lines read "0::/a/b" (v2) or "7:memory:/a/b" (v1).
  while (std::getline(in, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers.empty()) {
      room = std::min(room, room_upwards(root + "/sys/fs/cgroup", group, {"memory.max", "memory.current", ""}));
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      room = std::min(room, room_upwards(root + "/sys/fs/cgroup/memory", group,
                                         {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"}));
    }
  }
  return room;
}

}  // namespace

int64_t available_memory_bytes(const std::string& root) { return std::min(system_available(root), group_available(root)); }

int64_t available_memory_bytes() { return available_memory_bytes(""); }

}  // namespace k3
