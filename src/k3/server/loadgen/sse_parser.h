// Server-sent events out of bytes, wherever chunks of the transport end. Lines may end with LF, CR or CRLF; comments and
// fields other than data are skipped; several data lines of one event are joined by a line end.
// Source: the event stream format of the HTML standard.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "k3/base/result.h"

namespace k3::server {

inline constexpr int64_t kMaxEventBytes = int64_t{64} << 20;

class SseParser {
 public:
  // Calls `event` with the data of each event that ends in these bytes. corrupt: an event beyond kMaxEventBytes.
  Status push(std::string_view bytes, const std::function<void(std::string_view data)>& event);

 private:
  void end_line(const std::function<void(std::string_view data)>& event);

  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false, first_line_ = true;
};

}  // namespace k3::server
