// Internal to server/http. The state of an exchange: filled by any thread, emptied by the connection on the io thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "k3/server/http/http.h"

namespace k3::http {

struct Exchange::State {
  // Set before anyone else sees the exchange.
  std::vector<Header> extra_headers;
  std::string request_id;
  bool head_only = false;  // HEAD: no body
  bool keep_alive = true;  // the connection goes on after the answer
  bool chunked = true;     // HTTP/1.1; before, a stream ends with the connection

  std::mutex mutex;  // guards what follows
  size_t output_bytes = 0;
  std::string pending;
  size_t in_flight_bytes = 0;
  int status = 0;
  bool told = false;
  bool started = false, streaming = false, finished = false, aborted = false, gone = false, cut_off = false;
  bool wake_posted = false;
  bool paced = false;  // a timer of the connection will look at the output
  std::function<void()> wake;  // posts to the io thread; empty once the connection is done with the exchange
  std::function<void()> on_gone;
};

// A head in HTTP/1.1; length: of a body that follows at once, none: chunked or until the end of the connection.
std::string head_text(const Exchange::State& state, int status, std::string_view content_type,
                      const std::vector<Header>& headers, std::optional<size_t> length);

}  // namespace k3::http
