#include "k3/server/loadgen/http_client.h"

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <unordered_set>

namespace k3::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using beast::error_code;
using Clock = std::chrono::steady_clock;

// A slow trace has waits that 64 bits of nanoseconds do not hold; they would be over at once.
Clock::duration duration_of(double seconds) {
  constexpr double kLongest = 1e9;  // 31 years
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, kLongest)));
}

constexpr uint32_t kMostHeaderBytes = 64 << 10;

}  // namespace

struct HttpClient::Impl {
  class Exchange;

  asio::io_context io{1};
  Url url;
  HttpTimeouts timeouts;
  tcp::resolver::results_type endpoints;
  std::vector<std::unique_ptr<beast::tcp_stream>> idle;
  std::unordered_set<std::shared_ptr<Exchange>> live;
  std::unordered_set<std::shared_ptr<asio::steady_timer>> timers;
  int64_t connections = 0;
};

// One request and its answer. Alive as long as an operation of it is.
class HttpClient::Impl::Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Impl& client, HttpRequest request, HttpHandlers handlers)
      : client_(client), handlers_(std::move(handlers)), start_(Clock::now()) {
    request_.method_string(request.method);
    request_.target(request.target);
    request_.version(11);
    request_.set(http::field::host, client.url.authority());
    request_.set(http::field::user_agent, "k3-loadgen");
    for (const auto& [name, value] : request.headers) request_.set(name, value);
    request_.body() = std::move(request.body);
    if (!request_.body().empty()) request_.set(http::field::content_type, "application/json");
    request_.prepare_payload();
  }

  void start() {
    if (client_.idle.empty()) return connect();
    stream_ = std::move(client_.idle.back());
    client_.idle.pop_back();
    reused_ = true;
    write();
  }

  // The operation that is under way ends with an error, and finish() says cancelled.
  void cancel() {
    cancelled_ = true;
    if (!stream_) return;
    stream_->cancel();
    stream_->close();
  }

 private:
  void connect() {
    reused_ = false;
    stream_ = std::make_unique<beast::tcp_stream>(client_.io);
    stream_->expires_at(
        std::min(start_ + duration_of(client_.timeouts.total_s), Clock::now() + duration_of(client_.timeouts.connect_s)));
    stream_->async_connect(client_.endpoints, [self = this->shared_from_this()](error_code error, const tcp::endpoint&) {
      if (error) return self->end(error, "connecting");
      ++self->client_.connections;
      error_code ignored;
      self->stream_->socket().set_option(tcp::no_delay(true), ignored);
      self->write();
    });
  }

  void write() {
    stream_->expires_at(start_ + duration_of(client_.timeouts.total_s));
    http::async_write(*stream_, request_, [self = this->shared_from_this()](error_code error, size_t) {
      // A server may answer (413, 429) and close before it has read everything: its answer is worth more than the error.
      if (error && error != asio::error::broken_pipe && error != asio::error::connection_reset) {
        return self->end(error, "sending");
      }
      self->read_head();
    });
  }

  void read_head() {
    parser_.emplace();
    parser_->header_limit(kMostHeaderBytes);
    parser_->body_limit(boost::none);
    http::async_read_header(*stream_, buffer_, *parser_, [self = this->shared_from_this()](error_code error, size_t bytes) {
      const bool stale = self->reused_ && bytes == 0 && self->buffer_.size() == 0 && !self->cancelled_ &&
                         (error == http::error::end_of_stream || error == asio::error::connection_reset ||
                          error == asio::error::broken_pipe);
      if (stale) return self->connect();
      if (error) return self->end(error, "waiting for the answer");
      self->give_head();
      self->read_body();
    });
  }

  void give_head() {
    const auto& message = parser_->get();
    const auto text = [&](std::string_view name) {
      return std::string(message[beast::string_view(name.data(), name.size())]);
    };
    if (handlers_.on_head) {
      handlers_.on_head({static_cast<int>(message.result_int()), text("Content-Type"), text("Retry-After"),
                         text("X-Msh-Usage-Prompt-Tokens"), text("X-Msh-Usage-Cached-Tokens")});
    }
  }

  void read_body() {
    if (parser_->is_done()) return end({}, "");
    parser_->get().body().data = chunk_.data();
    parser_->get().body().size = chunk_.size();
    parser_->get().body().more = true;
    http::async_read_some(*stream_, buffer_, *parser_, [self = this->shared_from_this()](error_code error, size_t) {
      if (error == http::error::need_buffer) error = {};
      const size_t bytes = self->chunk_.size() - self->parser_->get().body().size;
      if (bytes > 0 && self->handlers_.on_body && !self->cancelled_) self->handlers_.on_body({self->chunk_.data(), bytes});
      if (error) return self->end(error, "reading the answer");
      self->read_body();
    });
  }

  void end(error_code error, std::string_view doing) {
    if (!error && !cancelled_ && parser_->keep_alive() && buffer_.size() == 0) {
      stream_->expires_never();
      client_.idle.push_back(std::move(stream_));
    } else {
      stream_->close();
    }
    const auto self = this->shared_from_this();
    client_.live.erase(self);
    const auto [kind, message] = describe(error, doing);
    handlers_.on_end(kind, message);
  }

  std::pair<HttpEnd, std::string> describe(error_code error, std::string_view doing) const {
    const std::string peer = client_.url.authority();
    if (cancelled_) return {HttpEnd::cancelled, "cancelled"};
    if (!error) return {HttpEnd::done, ""};
    if (error == asio::error::connection_refused) {
      return {HttpEnd::refused, fmt::format("nothing listens at {} (connection refused)", peer)};
    }
    if (error == beast::error::timeout) {
      const double waited = std::chrono::duration<double>(Clock::now() - start_).count();
      return {HttpEnd::timed_out, fmt::format("time-out after {:.1f} s, {}", waited, doing)};
    }
    if (error == http::error::end_of_stream || error == http::error::partial_message || error == asio::error::eof ||
        error == asio::error::connection_reset || error == asio::error::broken_pipe) {
      return {HttpEnd::cut, fmt::format("{} closed the connection, {}", peer, doing)};
    }
    return {HttpEnd::broken, fmt::format("{} with {}: {}", doing, peer, error.message())};
  }

  Impl& client_;
  std::unique_ptr<beast::tcp_stream> stream_;
  beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
  std::optional<http::response_parser<http::buffer_body>> parser_;
  std::array<char, 16 << 10> chunk_{};
  HttpHandlers handlers_;
  Clock::time_point start_;
  bool reused_ = false, cancelled_ = false;
};

HttpClient::HttpClient() : impl_(std::make_unique<Impl>()) {}
HttpClient::~HttpClient() = default;

Result<std::unique_ptr<HttpClient>> HttpClient::create(const Url& url, const HttpTimeouts& timeouts) {
  std::unique_ptr<HttpClient> client(new HttpClient());
  client->impl_->url = url;
  client->impl_->timeouts = timeouts;
  tcp::resolver resolver(client->impl_->io);
  error_code error;
  client->impl_->endpoints = resolver.resolve(url.host, url.port, error);
  if (error) return fail(Code::not_found, "{}: the host has no address ({})", url.authority(), error.message());
  return client;
}

void HttpClient::send(HttpRequest request, HttpHandlers handlers) {
  const auto exchange = std::make_shared<Impl::Exchange>(*impl_, std::move(request), std::move(handlers));
  impl_->live.insert(exchange);
  exchange->start();
}

void HttpClient::after(double seconds, std::function<void()> then) {
  const auto timer = std::make_shared<asio::steady_timer>(impl_->io, duration_of(std::max(0.0, seconds)));
  impl_->timers.insert(timer);
  timer->async_wait([this, timer, then = std::move(then)](error_code error) {
    // Forgotten by cancel_all() although it was due already: the error alone does not tell.
    if (impl_->timers.erase(timer) > 0 && !error) then();
  });
}

void HttpClient::run() {
  impl_->io.restart();
  impl_->io.run();
}

void HttpClient::cancel_all() {
  const auto timers = std::exchange(impl_->timers, {});
  for (const auto& timer : timers) timer->cancel();
  const auto live = impl_->live;
  for (const auto& exchange : live) exchange->cancel();
}

int64_t HttpClient::connections_made() const { return impl_->connections; }

}  // namespace k3::server
