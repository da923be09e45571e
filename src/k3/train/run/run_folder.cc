#include "k3/train/run/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "k3/base/file.h"

namespace k3::train {
namespace {

// Of FileWriter, in a process that was killed: the lock says that no other one is writing.
void remove_temporaries(const std::string& path) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.path().filename().string().find(".tmp-") != std::string::npos) std::filesystem::remove(entry.path(), error);
  }
}

}  // namespace

Result<RunFolder> RunFolder::open(const std::string& path) {
  K3_TRY(make_directories(path));
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return fail(Code::invalid_argument, "{}: cannot open the folder: {}", path, std::strerror(errno));
  RunFolder out(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return fail(Code::unavailable, "{}: another process trains in this folder; wait for it, or take another folder (-o)", path);
  }
  if (::access(path.c_str(), W_OK) != 0) return fail(Code::invalid_argument, "{}: cannot write to the folder: {}", path, std::strerror(errno));
  remove_temporaries(path);
  return out;
}

RunFolder::~RunFolder() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace k3::train
