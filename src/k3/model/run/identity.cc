#include "k3/model/run/identity.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "k3/base/file.h"
#include "k3/base/hash/sha256.h"

namespace k3 {

std::string model_identity(const std::string& folder) {
  std::string text;
  const Result<std::string> config = read_file(join_path(folder, "config.json"));
  text += config.ok() ? *config : fmt::format("unreadable in process {}", ::getpid());
  std::vector<std::string> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".index.json")) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    struct stat info {};
    if (::stat(file.c_str(), &info) != 0) continue;
    text += fmt::format("\n{} {} {}.{}", std::filesystem::path(file).filename().string(), info.st_size, info.st_mtim.tv_sec,
                        info.st_mtim.tv_nsec);
  }
  return sha256_hex(text);
}

}  // namespace k3
