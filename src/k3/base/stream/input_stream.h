// A file read from front to back, unpacked on the way when it is zstd (known by its first bytes, not by its name).
// Threads:  one at a time.
// Errors:   not_found; corrupt naming the file and the offset in it: damaged or cut zstd data (a frame that does not end).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "k3/base/result.h"

namespace k3 {

class InputStream {
 public:
  static Result<InputStream> open(const std::string& path);
  InputStream(InputStream&&) noexcept;
  InputStream& operator=(InputStream&&) noexcept;
  ~InputStream();

  // Fills `bytes` as far as the file goes; less than bytes.size() only at its end.
  Result<size_t> read(std::span<char> bytes);

  const std::string& path() const;
  bool compressed() const;
  int64_t file_bytes() const;     // size of the file as it lies on disk
  int64_t file_position() const;  // of them taken in so far: for progress
  int64_t position() const;       // bytes given out so far

 private:
  struct Impl;
  explicit InputStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3
