#include "k3/format/trace/line_reader.h"

#include <span>

namespace k3 {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

Result<LineReader> LineReader::open(const std::string& path) {
  LineReader reader(path);
  K3_TRY_ASSIGN(reader.file_, InputStream::open(path));
  return reader;
}

LineReader LineReader::of_text(std::string text, std::string name) {
  LineReader reader(std::move(name));
  reader.window_ = std::move(text);
  return reader;
}

std::string LineReader::place() const { return fmt::format("{}:{}", name_, line_); }

Status LineReader::fill() {
  window_.erase(0, start_);
  start_ = 0;
  const size_t have = window_.size();
  window_.resize(have + kReadBytes);
  K3_TRY_ASSIGN(const size_t got, file_->read(std::span(window_).subspan(have)));
  window_.resize(have + got);
  if (got < kReadBytes) file_.reset();
  return {};
}

Result<std::optional<std::string_view>> LineReader::next() {
  size_t searched = start_;
  size_t end = window_.find('\n', searched);
  while (end == std::string::npos && file_) {
    searched = window_.size() - start_;
    if (static_cast<int64_t>(searched) > kMaxLineBytes) {
      return fail(Code::corrupt, "{}:{}: a line longer than {} MiB", name_, line_ + 1, kMaxLineBytes >> 20);
    }
    K3_TRY(fill());
    end = window_.find('\n', searched);
  }
  if (end == std::string::npos && start_ == window_.size()) return std::optional<std::string_view>();
  std::string_view line(window_);
  line = line.substr(start_, end == std::string::npos ? end : end - start_);
  start_ = end == std::string::npos ? window_.size() : end + 1;
  if (line_++ == 0 && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (static_cast<int64_t>(line.size()) > kMaxLineBytes) {
    return fail(Code::corrupt, "{}: a line longer than {} MiB", place(), kMaxLineBytes >> 20);
  }
  return std::optional<std::string_view>(line);
}

}  // namespace k3
