#include "k3/server/loadgen/sse_parser.h"

namespace k3::server {

Status SseParser::push(std::string_view bytes, const std::function<void(std::string_view data)>& event) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (after_cr_ && bytes[at] == '\n') {
      after_cr_ = false;
      ++at;
      continue;
    }
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n", at);
    line_.append(bytes.substr(at, end == std::string_view::npos ? end : end - at));
    if (static_cast<int64_t>(line_.size() + data_.size()) > kMaxEventBytes) {
      line_.clear();  // a server that never ends an event must not fill the memory of its client
      data_.clear();
      has_data_ = false;
      return fail(Code::corrupt, "an event longer than {} MiB", kMaxEventBytes >> 20);
    }
    if (end == std::string_view::npos) break;
    after_cr_ = bytes[end] == '\r';
    at = end + 1;
    end_line(event);
  }
  return {};
}

void SseParser::end_line(const std::function<void(std::string_view data)>& event) {
  std::string_view line = line_;
  if (first_line_ && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  first_line_ = false;
  if (line.empty()) {
    if (has_data_) event(data_);
    data_.clear();
    has_data_ = false;
  } else if (line == "data" || line.starts_with("data:")) {
    line.remove_prefix(line.size() > 4 ? 5 : 4);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace k3::server
