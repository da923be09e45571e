// An HTTP/1.1 client for many exchanges at once, all on the thread that calls run(). Connections are used again when the
// server leaves them open; an idle one that the server has closed meanwhile is replaced without notice.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/base/result.h"
#include "k3/server/loadgen/url.h"

namespace k3::server {

struct HttpRequest {
  std::string method = "GET", target, body;
  std::vector<std::pair<std::string, std::string>> headers;
};

struct HttpHead {
  int status = 0;
  std::string content_type, retry_after, prompt_tokens, cached_tokens;  // the headers that a load generator reads
};

enum class HttpEnd { done, refused, timed_out, cut, broken, cancelled };  // cut: the peer closed too early

struct HttpHandlers {
  std::function<void(const HttpHead&)> on_head;
  std::function<void(std::string_view bytes)> on_body;
  std::function<void(HttpEnd end, const std::string& message)> on_end;  // exactly once, after the others
};

struct HttpTimeouts {
  double connect_s = 10;
  double total_s = 600;
};

class HttpClient {
 public:
  // not_found: the host has no address.
  static Result<std::unique_ptr<HttpClient>> create(const Url& url, const HttpTimeouts& timeouts);
  ~HttpClient();

  void send(HttpRequest request, HttpHandlers handlers);
  void after(double seconds, std::function<void()> then);

  // Until nothing is left to do. Handlers may send and wait anew.
  void run();

  // Ends every exchange (cancelled) and forgets every waiting function. From a handler.
  void cancel_all();

  int64_t connections_made() const;

 private:
  HttpClient();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3::server
