#include "k3/cache/tier/slab_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "k3/base/file.h"

namespace k3::cache {

namespace {

constexpr int64_t kFileBytes = int64_t{1} << 30;
constexpr std::string_view kPrefix = "slab-";

std::optional<size_t> number_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  size_t number = 0;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

}  // namespace

bool SlabStore::is_slab(std::string_view name) { return number_of(name).has_value(); }

SlabStore::SlabStore(std::string folder, int64_t slot_bytes, int64_t slots)
    : folder_(std::move(folder)), slot_bytes_(slot_bytes), slots_per_file_(std::max<int64_t>(1, kFileBytes / slot_bytes)) {
  files_.resize(static_cast<size_t>((slots + slots_per_file_ - 1) / slots_per_file_));
}

SlabStore::~SlabStore() {
  for (const FileState& file : files_) {
    if (file.descriptor >= 0) ::close(file.descriptor);
  }
}

std::string SlabStore::path_of(size_t file) const { return join_path(folder_, fmt::format("{}{:04}", kPrefix, file)); }

Result<SlabStore::FileState*> SlabStore::file_of(int32_t slot) {
  const auto number = static_cast<size_t>(slot / slots_per_file_);
  FileState& file = files_[number];
  if (file.descriptor < 0) {
    file.descriptor = ::open(path_of(number).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file.descriptor < 0) return fail(Code::internal, "{}: {}", path_of(number), std::strerror(errno));
  }
  return &file;
}

Status SlabStore::write(int32_t slot, int64_t offset, std::span<const std::byte> bytes) {
  K3_TRY_ASSIGN(FileState* const file, file_of(slot));
  file->dirty = true;
  int64_t at = slot % slots_per_file_ * slot_bytes_ + offset;
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(file->descriptor, bytes.data(), bytes.size(), at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      const bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
      return fail(full ? Code::exhausted : Code::internal, "{}: {}", path_of(static_cast<size_t>(slot / slots_per_file_)),
                  std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(done));
    at += done;
  }
  return {};
}

Status SlabStore::read(int32_t slot, int64_t offset, std::span<std::byte> bytes) {
  K3_TRY_ASSIGN(const FileState* const file, file_of(slot));
  int64_t at = slot % slots_per_file_ * slot_bytes_ + offset;
  while (!bytes.empty()) {
    const ssize_t done = ::pread(file->descriptor, bytes.data(), bytes.size(), at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return fail(Code::internal, "slot {}: {}", slot, std::strerror(errno));
    if (done == 0) return fail(Code::corrupt, "slot {} ends early", slot);
    bytes = bytes.subspan(static_cast<size_t>(done));
    at += done;
  }
  return {};
}

Status SlabStore::sync() {
  for (size_t number = 0; number < files_.size(); ++number) {
    if (!files_[number].dirty) continue;
    if (::fdatasync(files_[number].descriptor) != 0) return fail(Code::internal, "{}: {}", path_of(number), std::strerror(errno));
    files_[number].dirty = false;
  }
  return {};
}

void SlabStore::remove_files(size_t first) {
  for (size_t i = first; i < files_.size(); ++i) {
    if (files_[i].descriptor >= 0) ::close(files_[i].descriptor);
    files_[i] = {};
  }
  DIR* const folder = ::opendir(folder_.c_str());
  if (folder == nullptr) return;
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder)) {
    const auto number = number_of(entry->d_name);
    if (number && *number >= first) names.emplace_back(entry->d_name);
  }
  ::closedir(folder);
  for (const std::string& name : names) ::unlink(join_path(folder_, name).c_str());
}

}  // namespace k3::cache
