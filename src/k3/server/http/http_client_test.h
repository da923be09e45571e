// Purpose:  a small blocking HTTP client over plain sockets, so that tests see the bytes. Test code only.
// Shapes:   none.
// Units:    seconds.
// Memory:   owns its socket.
// Threads:  one client, one thread.
// Errors:   test failures; reads give up after ten seconds.
// Source:   api.md 1.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace k3::test {

struct HttpAnswer {
  int status = 0;  // 0: the connection ended before a head
  std::string head, body;
  bool complete = false;  // the body ended as its head promises

  std::string header(std::string_view lower_name) const {
    std::string lower = head;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    const size_t at = lower.find("\r\n" + std::string(lower_name) + ": ");
    if (at == std::string::npos) return "";
    const size_t begin = at + lower_name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient() { close(); }

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // More bytes into the buffer; false at the end, after an error or ten silent seconds.
  bool receive() {
    pollfd wait{fd_, POLLIN, 0};
    if (::poll(&wait, 1, 10'000) <= 0) return false;
    char bytes[65536];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  bool closed_by_server() {
    while (receive()) {
    }
    return true;
  }
  std::string read_until(std::string_view mark) {
    size_t at = 0;
    while ((at = buffer_.find(mark)) == std::string::npos) {
      if (!receive()) return "";
    }
    std::string out = buffer_.substr(0, at + mark.size());
    buffer_.erase(0, out.size());
    return out;
  }

  HttpAnswer read_answer(bool head_only = false) {
    HttpAnswer answer;
    answer.head = read_until("\r\n\r\n");
    if (answer.head.size() < 12) return answer;
    answer.status = std::stoi(answer.head.substr(9, 3));
    if (answer.status == 100) return read_answer();
    const std::string length = answer.header("content-length");
    if (head_only || answer.status == 204) {
      answer.complete = true;
    } else if (!length.empty()) {
      const size_t bytes = std::stoul(length);
      while (buffer_.size() < bytes && receive()) {
      }
      answer.complete = buffer_.size() >= bytes;
      answer.body = buffer_.substr(0, bytes);
      buffer_.erase(0, bytes);
    } else if (answer.header("transfer-encoding") == "chunked") {
      while (true) {
        const std::string line = read_until("\r\n");
        if (line.empty()) break;
        const size_t bytes = std::stoul(line, nullptr, 16);
        while (buffer_.size() < bytes + 2 && receive()) {
        }
        if (buffer_.size() < bytes + 2) break;
        answer.body += buffer_.substr(0, bytes);
        buffer_.erase(0, bytes + 2);
        if (bytes == 0) {
          answer.complete = true;
          break;
        }
      }
    } else {
      while (receive()) {
      }
      answer.complete = true;
      answer.body = std::move(buffer_);
      buffer_.clear();
    }
    return answer;
  }

  HttpAnswer ask(std::string_view method, std::string_view target, std::string_view body = {},
                 std::string_view headers = {}) {
    std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}", method, target, headers);
    if (method == "POST") text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
    send(text + "\r\n" + std::string(body));
    return read_answer(method == "HEAD");
  }
  std::string& buffer() { return buffer_; }

 private:
  int fd_ = -1;
  std::string buffer_;
};

// Waits until the condition holds; false after ten seconds.
inline bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace k3::test
