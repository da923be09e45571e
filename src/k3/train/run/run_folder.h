// Purpose:  the folder of a run, used by one process at a time and free of what a killed one left half written.
// Shapes:   none.
// Units:    none.
// Memory:   one descriptor.
// Threads:  one.
// Errors:   open: the folder cannot be made (invalid_argument), or another process trains in it (unavailable).
// Source:   a lock of the folder's descriptor (flock): it goes with the process, however that ends. A file system without such locks
//           is taken as it is.
#pragma once

#include <string>
#include <utility>

#include "k3/base/result.h"

namespace k3::train {

class RunFolder {
 public:
  static Result<RunFolder> open(const std::string& path);
  RunFolder(RunFolder&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RunFolder& operator=(RunFolder&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~RunFolder();

 private:
  explicit RunFolder(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace k3::train
