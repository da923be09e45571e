// Purpose:  the only gate to files: positional reads that loop on short reads, whole-file reads with a limit,
//           atomic writes (temporary name, fsync, rename).
// Threads:  a File may be read from many threads at once (pread).
// Errors:   every message names the path; not_found for a missing file, corrupt for one that ends early,
//           exhausted for a full disk.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "k3/base/result.h"

namespace k3 {

class File {
 public:
  static Result<File> open(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::string& path() const { return path_; }
  int descriptor() const { return fd_; }
  int64_t size_bytes() const { return size_bytes_; }  // at open time

  // Reads exactly bytes.size() bytes at the offset or fails; a file cut short since open is `corrupt`.
  Status read_at(int64_t offset, std::span<std::byte> bytes) const;

 private:
  File(int fd, std::string path, int64_t size_bytes) : fd_(fd), path_(std::move(path)), size_bytes_(size_bytes) {}
  int fd_ = -1;
  std::string path_;
  int64_t size_bytes_ = 0;
};

// The whole file as a string; refuses (exhausted) files over max_bytes.
Result<std::string> read_file(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

// Sequential writer to `path + ".tmp-<pid>"`, renamed over path by commit(); without commit() nothing remains.
// A symbolic link is followed. What is no regular file (a device, a pipe) is written in place, never replaced.
class FileWriter {
 public:
  static Result<FileWriter> create(const std::string& path);
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&&) = delete;
  ~FileWriter();

  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text) { return write(std::as_bytes(std::span(text.data(), text.size()))); }
  Status commit();
  int64_t written_bytes() const { return written_bytes_; }

 private:
  FileWriter(int fd, std::string path, std::string temporary)
      : fd_(fd), path_(std::move(path)), temporary_(std::move(temporary)) {}
  int fd_ = -1;
  std::string path_, temporary_;  // temporary_ is empty: written in place
  int unfinished_ = -1;           // where remove_unfinished_files() finds temporary_
  int64_t written_bytes_ = 0;
};

// All of `bytes` to an open descriptor, however little a call takes; `path` is for the message.
Status write_all(int descriptor, const std::string& path, std::span<const std::byte> bytes);

Status write_file(const std::string& path, std::string_view text);

// Removes the temporary files of all writers that have not committed; what they write from then on is lost. For the way out
// of a program that a signal ends: may be called from a signal handler, while other threads write.
void remove_unfinished_files() noexcept;

bool path_exists(const std::string& path);
bool is_directory(const std::string& path);
Status make_directories(const std::string& path);
std::string join_path(std::string_view folder, std::string_view name);

}  // namespace k3
