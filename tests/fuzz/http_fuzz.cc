// The bytes of a connection, against the real server on a loopback port: heads, bodies, pipelined requests. The server
// answers or closes, and serves the next client.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>

#include "k3/base/check.h"
#include "k3/base/utf8.h"
#include "k3/server/http/http.h"

namespace {

using namespace k3;

http::Server& server() {
  static const std::unique_ptr<http::Server> instance = [] {
    http::Options options;
    options.limits.body_bytes = 4096;
    options.limits.header_bytes = 2048;
    options.limits.head_seconds = options.limits.body_seconds = 5;
    options.handler = [](http::Request request, const std::shared_ptr<http::Exchange>& exchange) {
      K3_CHECK(request.body.size() <= 4096 && is_utf8(request.head.path), "a request that should not have come");
      exchange->begin_stream(200, "text/plain", {});
      exchange->write(request.head.method);
      exchange->finish();
    };
    options.error_body = [](const http::RequestHead&, int status, std::string_view) { return std::to_string(status); };
    return http::Server::start(std::move(options)).value();
  }();
  return *instance;
}

// What the server says to these bytes, until it closes.
std::string talk(const uint8_t* data, size_t size) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server().port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  K3_CHECK(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "cannot connect");
  const timeval limit{10, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  (void)!::send(fd, data, size, MSG_NOSIGNAL);
  ::shutdown(fd, SHUT_WR);
  std::string out;
  char bytes[4096];
  for (ssize_t n = 0; (n = ::recv(fd, bytes, sizeof bytes, 0)) > 0;) out.append(bytes, static_cast<size_t>(n));
  ::close(fd);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string answer = talk(data, size);
  K3_CHECK(answer.empty() || answer.starts_with("HTTP/1.1 "), "an answer that is none: {}", utf8_repair(answer));
  http::harmless_request_id({reinterpret_cast<const char*>(data), size});
  if (const auto path = http::decode_path({reinterpret_cast<const char*>(data), size}))
    K3_CHECK(is_utf8(*path), "a path that is not UTF-8");
  return 0;
}
