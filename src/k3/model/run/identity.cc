#include "k3/model/run/identity.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "k3/base/file.h"
#include "k3/base/hash/sha256.h"
#include "k3/base/rng.h"

namespace k3 {

std::string model_identity(const std::string& folder) {
  const Result<std::string> config = read_file(join_path(folder, "config.json"));
  std::string text = config.ok() ? *config : std::string();
  bool whole = config.ok();
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".index.json")) files.push_back(it->path().string());
  }
  whole = whole && !error;
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    struct stat info {};
    whole = ::stat(file.c_str(), &info) == 0 && whole;
    text += fmt::format("\n{} {} {}.{}", std::filesystem::path(file).filename().string(), info.st_size, info.st_mtim.tv_sec,
                        info.st_mtim.tv_nsec);
  }
  if (!whole) text += fmt::format("\nunreadable {}", random_seed());
  return sha256_hex(text);
}

}  // namespace k3
