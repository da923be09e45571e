// A server for tests: plain sockets, a thread a connection, and a script that says for each request which bytes go out, with
// which pauses, and where the connection breaks. It serves GET /v1/models by itself.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "k3/base/check.h"

namespace k3::server::test {

struct FakeRequest {
  std::string method, target, head, body;
  int64_t number = 0;  // from 0, over all connections, without /v1/models
};

class FakeConnection {
 public:
  explicit FakeConnection(int fd) : fd_(fd) {}
  void write(std::string_view bytes) {
    while (!bytes.empty() && open_) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) open_ = false;
      if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
  void close() { open_ = false; }
  void reset() {  // RST instead of FIN
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    open_ = false;
  }
  bool open() const { return open_; }

  void answer(int status, std::string_view body, const std::string& headers = "") {
    write(fmt::format("HTTP/1.1 {} X\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n{}", status, headers,
                      body.size(), body));
  }
  void begin_stream(const std::string& headers = "") {
    write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n" + headers +
          "Transfer-Encoding: chunked\r\n\r\n");
  }
  void chunk(std::string_view bytes) { write(fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes)); }
  void event(std::string_view data) { chunk(fmt::format("data: {}\n\n", data)); }
  void end_stream() { write("0\r\n\r\n"); }

 private:
  int fd_;
  bool open_ = true;
};

class FakeServer {
 public:
  using Script = std::function<void(FakeConnection&, const FakeRequest&)>;
  explicit FakeServer(Script script,
                      std::string models = R"({"data":[{"id":"fake","meta":{"n_vocab":5000},"max_model_len":4096}]})")
      : script_(std::move(script)), models_(std::move(models)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    K3_CHECK(::bind(listener_, generic, size) == 0 && ::listen(listener_, 512) == 0 &&
             ::getsockname(listener_, generic, &size) == 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  ~FakeServer() {
    stop_ = true;
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    ::close(listener_);
  }

  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  std::vector<FakeRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  int64_t connections() const { return connections_; }
  int64_t most_at_once() const { return most_; }

 private:
  void accept_all() {
    while (!stop_) {
      pollfd ready{listener_, POLLIN, 0};
      if (::poll(&ready, 1, 20) <= 0) continue;
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      const int one = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      ++connections_;
      threads_.emplace_back([this, fd] { serve(fd); });
    }
  }

  // False at the end of the connection or of the test.
  bool fill(int fd, std::string& buffer) {
    while (!stop_) {
      pollfd ready{fd, POLLIN, 0};
      if (::poll(&ready, 1, 20) <= 0) continue;
      char bytes[65536];
      const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
      if (n <= 0) return false;
      buffer.append(bytes, static_cast<size_t>(n));
      return true;
    }
    return false;
  }

  bool read_request(int fd, std::string& buffer, FakeRequest& request) {
    size_t end = 0;
    while ((end = buffer.find("\r\n\r\n")) == std::string::npos) {
      if (!fill(fd, buffer)) return false;
    }
    request.head = buffer.substr(0, end + 2);
    request.method = request.head.substr(0, request.head.find(' '));
    const size_t target = request.method.size() + 1;
    request.target = request.head.substr(target, request.head.find(' ', target) - target);
    const size_t length = request.head.find("Content-Length: ");
    const size_t bytes = length == std::string::npos ? 0 : std::strtoul(request.head.c_str() + length + 16, nullptr, 10);
    while (buffer.size() < end + 4 + bytes) {
      if (!fill(fd, buffer)) return false;
    }
    request.body = buffer.substr(end + 4, bytes);
    buffer.erase(0, end + 4 + bytes);
    return true;
  }

  void serve(int fd) {
    FakeConnection connection(fd);
    std::string buffer;
    FakeRequest request;
    while (connection.open() && read_request(fd, buffer, request)) {
      if (request.target == "/v1/models") {
        connection.answer(200, models_);
        continue;
      }
      {
        const std::lock_guard lock(mutex_);
        request.number = static_cast<int64_t>(requests_.size());
        requests_.push_back(request);
        most_ = std::max<int64_t>(most_, ++active_);
      }
      script_(connection, request);
      --active_;
    }
    ::close(fd);
  }

  Script script_;
  std::string models_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> connections_{0}, active_{0}, most_{0};
  std::mutex mutex_;
  std::vector<FakeRequest> requests_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

// A good stream of completions: `tokens` frames and the usage, a pause before each frame.
inline void stream_completion(FakeConnection& c, int64_t tokens, int64_t prompt, int64_t cached, double pause_s = 0) {
  c.begin_stream();
  for (int64_t i = 0; i < tokens; ++i) {
    c.pause(pause_s);
    c.event(R"({"object":"text_completion","choices":[{"index":0,"text":" a","finish_reason":null}]})");
  }
  c.event(R"({"choices":[{"index":0,"text":"","finish_reason":"length"}]})");
  c.event(fmt::format(
      R"({{"choices":[],"usage":{{"prompt_tokens":{},"completion_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}}}})",
      prompt, tokens, cached));
  c.event("[DONE]");
  c.end_stream();
}

}  // namespace k3::server::test
