#include "k3/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace k3 {
namespace {

// Some systems refuse or shorten single reads and writes of 2 GiB and more.
constexpr size_t kMaxTransfer = size_t{1} << 30;

Error system_error(const std::string& path, const char* what) {
  const int number = errno;
  const bool full = number == ENOSPC || number == EDQUOT || number == EMFILE || number == EFBIG;
  const Code code = number == ENOENT || number == ENOTDIR                     ? Code::not_found
                    : full                                                    ? Code::exhausted
                    : number == EACCES || number == EPERM || number == EISDIR ? Code::invalid_argument
                                                                              : Code::unavailable;
  return fail(code, "{}: cannot {}: {}", path, what, std::strerror(number));
}

// Names of temporary files in use. Whoever takes a name out of its slot owns it: its writer frees it, a signal handler does not.
std::array<std::atomic<char*>, 64> g_unfinished;

// The slot; -1: all are taken, and a signal leaves this file behind (no command has so many open).
int register_unfinished(const std::string& path) {
  char* name = ::strdup(path.c_str());
  for (size_t i = 0; i < g_unfinished.size(); ++i) {
    char* none = nullptr;
    if (g_unfinished[i].compare_exchange_strong(none, name)) return static_cast<int>(i);
  }
  std::free(name);
  return -1;
}

void forget_unfinished(int slot) {
  if (slot >= 0) std::free(g_unfinished[static_cast<size_t>(slot)].exchange(nullptr));
}

}  // namespace

void remove_unfinished_files() noexcept {
  for (std::atomic<char*>& slot : g_unfinished) {
    if (char* name = slot.exchange(nullptr); name != nullptr) ::unlink(name);
  }
}

Result<File> File::open(const std::string& path) {
  // Not to wait for the writer of a FIFO; without effect on the regular files that are accepted.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error(path, "open");
  struct stat info;
  if (fstat(fd, &info) != 0) {
    Error error = system_error(path, "stat");
    ::close(fd);
    return error;
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return fail(Code::invalid_argument, "{}: not a regular file", path);
  }
  return File(fd, path, info.st_size);
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)), size_bytes_(other.size_bytes_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Status File::read_at(int64_t offset, std::span<std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pread(fd_, bytes.data() + done, std::min(bytes.size() - done, kMaxTransfer), offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(path_, "read");
    if (n == 0) {
      return fail(Code::corrupt, "{}: file ends at byte {}, {} bytes were expected from offset {}", path_,
                  offset + static_cast<int64_t>(done), bytes.size(), offset);
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<std::string> read_file(const std::string& path, int64_t max_bytes) {
  K3_TRY_ASSIGN(const File file, File::open(path));
  if (file.size_bytes() > max_bytes) {
    return fail(Code::exhausted, "{}: {} bytes is more than the limit of {}", path, file.size_bytes(), max_bytes);
  }
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  K3_TRY(file.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  return text;
}

Result<FileWriter> FileWriter::create(const std::string& given) {
  std::string path = given;
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    const int device = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (device < 0) return system_error(path, "write");
    return FileWriter(device, std::move(path), "");
  }
  std::error_code error;
  if (std::filesystem::is_symlink(path, error)) {
    const std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
    if (!error) path = target.string();
  }
  std::string temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return system_error(path, "create");
  FileWriter writer(fd, std::move(path), std::move(temporary));
  writer.unfinished_ = register_unfinished(writer.temporary_);
  return writer;
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      unfinished_(std::exchange(other.unfinished_, -1)),
      written_bytes_(other.written_bytes_) {}

FileWriter::~FileWriter() {
  if (fd_ >= 0) {
    ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }
  forget_unfinished(unfinished_);
}

Status write_all(int descriptor, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor, bytes.data(), std::min(bytes.size(), kMaxTransfer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(path, "write");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status FileWriter::write(std::span<const std::byte> bytes) {
  K3_TRY(write_all(fd_, path_, bytes));
  written_bytes_ += static_cast<int64_t>(bytes.size());
  return {};
}

Status FileWriter::commit() {
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) return system_error(path_, "write to disk");
  if (::close(std::exchange(fd_, -1)) != 0) {
    Error error = system_error(path_, "close");
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    return error;
  }
  if (temporary_.empty()) return {};
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    Error error = system_error(path_, "rename");
    ::unlink(temporary_.c_str());
    return error;
  }
  return {};
}

Status write_file(const std::string& path, std::string_view text) {
  K3_TRY_ASSIGN(FileWriter writer, FileWriter::create(path));
  K3_TRY(writer.write(text));
  return writer.commit();
}

bool path_exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool is_directory(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

Status make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return fail(Code::invalid_argument, "{}: cannot create the folder: {}", path, error.message());
  return {};
}

std::string join_path(std::string_view folder, std::string_view name) {
  if (folder.empty()) return std::string(name);
  std::string path(folder);
  if (path.back() != '/') path.push_back('/');
  return path.append(name);
}

}  // namespace k3
