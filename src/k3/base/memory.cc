#include "k3/base/memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>

#include "k3/base/numa/cgroup.h"

namespace k3 {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

std::optional<int64_t> number(const std::string& word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream in(path);
  std::string word;
  if (!(in >> word)) return std::nullopt;
  return number(word);  // "max" means no limit and is not a number either
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
  std::string name, value;
  int64_t sum = 0;
  while (in >> name >> value) {  // words: one odd number does not end the list
    if (name == prefix + "active_file" || name == prefix + "inactive_file") sum += number(value).value_or(0);
  }
  return sum;
}

int64_t group_available(const std::string& root) {
  int64_t room = kUnknown;
  for (const CgroupFolder& folder : cgroup_folders(root, "memory")) {
    const auto limit = read_number(folder.path + (folder.unified ? "memory.max" : "memory.limit_in_bytes"));
    const auto usage = read_number(folder.path + (folder.unified ? "memory.current" : "memory.usage_in_bytes"));
    if (!limit || !usage) continue;
    const int64_t given_back = cached(folder.path + "memory.stat", folder.unified ? "" : "total_");
    // The cache may have grown since the usage was read. "No limit" is nearly 2^63 in version 1, so nothing is added to it.
    const int64_t kept = std::max<int64_t>(0, *usage - given_back);
    room = std::min(room, std::max<int64_t>(0, *limit - kept));
  }
  return room;
}

}  // namespace

int64_t available_memory_bytes(const std::string& root) { return std::min(system_available(root), group_available(root)); }

int64_t available_memory_bytes() { return available_memory_bytes(""); }

}  // namespace k3
