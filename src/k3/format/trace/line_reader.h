// Purpose:  a text file (packed by zstd or not) or a text in memory, line by line, in constant memory.
// Shapes:   none.
// Units:    bytes; lines are counted from 1.
// Memory:   one window of the file; a line is valid until the next call.
// Threads:  one at a time.
// Errors:   corrupt for a line longer than kMaxLineBytes, with file and line; what InputStream says otherwise.
// Source:   architecture.md 8 (messages name file and place).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "k3/base/result.h"
#include "k3/base/stream/input_stream.h"

namespace k3 {

// 16 MiB are two million block ids: a thousand times the longest context there is.
inline constexpr int64_t kMaxLineBytes = int64_t{16} << 20;

class LineReader {
 public:
  static Result<LineReader> open(const std::string& path);
  static LineReader of_text(std::string text, std::string name);

  // The next line without its line end ("\n" or "\r\n"), nothing at the end. A byte order mark before the first is skipped.
  Result<std::optional<std::string_view>> next();

  int64_t line() const { return line_; }  // number of the line that next() gave last
  const std::string& name() const { return name_; }

  // "trace.jsonl:12"
  std::string place() const;

 private:
  explicit LineReader(std::string name) : name_(std::move(name)) {}
  Status fill();

  std::string name_;
  std::optional<InputStream> file_;  // nothing: the whole text, or its end, is in window_
  std::string window_;
  size_t start_ = 0;  // of the next line in window_
  int64_t line_ = 0;
};

}  // namespace k3
