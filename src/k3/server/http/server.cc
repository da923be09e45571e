// Accepting, connections and their state machine on Asio and Beast. A connection goes round:
//
//   head (time limit) -> gate -> body (size and time limits) -> handler; answer written, client watched -> head again, or
//   closed.
//
// While an answer is under way the socket is watched for its end, so that a client that hangs up is noticed without
// anything being written. Everything here runs on the io thread.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <set>
#include <thread>

#include "k3/base/log.h"
#include "k3/server/http/exchange.h"

namespace k3::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = 64 << 10;  // of the connection's buffer, head included
constexpr size_t kMostPipelinedBytes = 16 << 10;
constexpr uint64_t kMostDiscardedBytes = 256 << 10;  // bodies of refused requests that are read to keep the connection
constexpr double kLingerSeconds = 2;

Clock::duration duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class Connection;

}  // namespace

struct Server::Impl : std::enable_shared_from_this<Server::Impl> {
  explicit Impl(Options given) : options(std::move(given)), workers(static_cast<size_t>(std::max(1, options.workers))) {}

  Options options;
  std::mutex post_mutex;
  bool alive = true;  // guarded: once false nothing may be posted to io
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer accept_again{io};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  asio::thread_pool workers;
  std::set<std::shared_ptr<Connection>> connections;  // io thread
  std::atomic<bool> draining{false};
  std::atomic<int64_t> open{0}, exchanges{0}, accepted{0}, cut_off{0};
  uint16_t port = 0;
  std::thread thread;

  Status listen();
  void accept();
  void on_accept(error_code ec, tcp::socket socket);
  void stop();
};

namespace {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Server::Impl> server, tcp::socket socket)
      : server_(std::move(server)), socket_(std::move(socket)), timer_(server_->io), pace_(server_->io) {
    error_code ec;
    socket_.set_option(tcp::no_delay(true), ec);
    if (const int bytes = limits().send_buffer_bytes; bytes > 0) {
      socket_.set_option(asio::socket_base::send_buffer_size(bytes), ec);
    }
    socket_.non_blocking(true, ec);
    const tcp::endpoint peer = socket_.remote_endpoint(ec);
    if (!ec) remote_ = peer.address().to_string();
  }

  void start() { read_head(limits().head_seconds); }
  void close();
  void close_if_idle() {
    if (phase_ == Phase::head && buffer_.size() == 0) close();
  }
  void flush();

 private:
  using Parser = beast::http::request_parser<beast::http::string_body>;
  enum class Phase { head, body, handled, lingering, closed };

  const Limits& limits() const { return server_->options.limits; }
  void set_timer(double seconds, std::function<void()> action);
  void read_head(double seconds);
  void on_head(error_code ec);
  RequestHead take_head();
  void make_exchange(const RequestHead& head, bool keep_alive);
  void read_body();
  void read_body_piece();
  void on_body(error_code ec);
  void dispatch();
  void refuse(int status, std::string_view message, bool body_unread);
  void answer_and_close(Response response);
  void watch();
  void on_watch(error_code ec);
  void write_some();
  void written();
  void answered();
  void linger();
  void discard(const std::shared_ptr<std::array<char, 4096>>& bytes);
  void client_gone(bool cut_off);
  void end_exchange(int status);

  std::shared_ptr<Server::Impl> server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  uint64_t timer_round_ = 0;
  asio::steady_timer pace_;
  double unpaced_ = 0;  // writes that may go at once, when they were counted
  Clock::time_point counted_;
  beast::flat_buffer buffer_{kReadBytes};
  std::optional<Parser> parser_;
  std::string remote_;
  Phase phase_ = Phase::head;
  bool watching_ = false, writing_ = false, body_unread_ = false;
  bool gated_ = false;  // the exchange has the gate's headers

  std::shared_ptr<Exchange::State> exchange_;
  RequestHead head_;
  Clock::time_point body_end_;
  std::optional<Response> gate_response_;
  Clock::time_point begun_;
  std::string out_;
  size_t out_done_ = 0;
};

// One timer a connection: a new deadline replaces the old one, whose handler finds that its round is over.
void Connection::set_timer(double seconds, std::function<void()> action) {
  const uint64_t round = ++timer_round_;
  if (!action) {
    timer_.cancel();
    return;
  }
  timer_.expires_after(duration(seconds));
  timer_.async_wait([self = shared_from_this(), round, action = std::move(action)](error_code) {
    if (round == self->timer_round_ && self->phase_ != Phase::closed) action();
  });
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  if (exchange_) client_gone(false);
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  set_timer(0, {});
  pace_.cancel();  // nothing may keep a server that stops waiting
  error_code ec;
  socket_.close(ec);
  if (server_->connections.erase(shared_from_this()) > 0) --server_->open;
}

void Connection::read_head(double seconds) {
  phase_ = Phase::head;
  parser_.emplace();
  parser_->header_limit(limits().header_bytes);
  parser_->body_limit(limits().body_bytes);
  if (buffer_.size() == 0) buffer_.shrink_to_fit();  // idle connections cost little
  set_timer(seconds, [this] {
    if (buffer_.size() == 0) return close();
    begun_ = Clock::now();
    make_exchange(take_head(), false);
    refuse(408, "the head of the request did not arrive in time", true);
  });
  beast::http::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](error_code ec, size_t) {
    if (self->phase_ == Phase::head) self->on_head(ec);
  });
}

// Of a head that did not end well, the part that was understood.
RequestHead Connection::take_head() {
  RequestHead head;
  const auto& message = parser_->get();
  const auto text = [](beast::string_view view) { return std::string(view.data(), view.size()); };
  head.method = text(message.method_string());
  std::string target = text(message.target());
  // As proxies are asked: http://host/path.
  if (const size_t at = target.find("://"); at != std::string::npos && at > 0 && target.find('/') == at + 1) {
    target.erase(0, std::min(target.find_first_of("/?", at + 3), target.size()));
    if (target.empty() || target.front() != '/') target.insert(0, 1, '/');
  }
  const size_t question = std::min(target.find('?'), target.size());
  head.path = decode_path(std::string_view(target).substr(0, question)).value_or("");
  if (question < target.size()) head.query = target.substr(question + 1);
  for (const auto& field : message) {
    std::string name = text(field.name_string());
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    head.headers.push_back({std::move(name), text(field.value())});
  }
  head.request_id = harmless_request_id(head.header("x-request-id"));
  if (head.request_id.empty()) head.request_id = new_request_id();
  head.remote = remote_;
  if (!parser_->is_header_done()) return head;
  head.chunked = parser_->chunked();
  if (const auto length = parser_->content_length()) head.content_length = *length;
  return head;
}

void Connection::make_exchange(const RequestHead& head, bool keep_alive) {
  head_ = head;
  exchange_ = std::make_shared<Exchange::State>();
  exchange_->request_id = head.request_id.empty() ? new_request_id() : head.request_id;
  exchange_->head_only = head.method == "HEAD";
  exchange_->keep_alive = keep_alive && !server_->draining;
  exchange_->chunked = parser_->get().version() >= 11;
  exchange_->output_bytes = limits().output_bytes;
  unpaced_ = limits().paced_burst;
  counted_ = Clock::now();
  exchange_->wake = [server = server_, weak = weak_from_this()] {
    const std::lock_guard lock(server->post_mutex);
    if (!server->alive) return;
    asio::post(server->io, [weak] {
      if (const auto self = weak.lock()) self->flush();
    });
  };
  ++server_->exchanges;
  body_unread_ = gated_ = false;
}

void Connection::on_head(error_code ec) {
  begun_ = Clock::now();
  namespace http = beast::http;
  if (ec == http::error::end_of_stream || ec == asio::error::operation_aborted || ec == asio::error::eof ||
      ec == asio::error::connection_reset || ec == http::error::partial_message) {
    return close();
  }
  if (ec == http::error::body_limit) {
    make_exchange(take_head(), false);
    return refuse(413, fmt::format("the body is larger than the limit of {} bytes", limits().body_bytes), true);
  }
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    make_exchange(take_head(), false);
    return refuse(431, fmt::format("the head of the request is larger than {} bytes", limits().header_bytes), true);
  }
  if (ec) {
    make_exchange(take_head(), false);
    return refuse(400, "this is not HTTP/1.1: " + ec.message(), true);
  }
  make_exchange(take_head(), parser_->keep_alive());
  // Where such a body ends is anyone's guess, and what follows must not be taken for a request.
  if (!head_.chunked && !head_.header("transfer-encoding").empty()) {
    return refuse(400, "the last transfer coding of a body must be chunked", true);
  }
  const bool coded = head_.chunked && !beast::iequals(head_.header("transfer-encoding"), "chunked");
  if (coded) return refuse(501, "of transfer codings only chunked is understood", true);
  // Which of two hosts is meant is anyone's guess, too: the next server may take the other.
  const auto is_host = [](const Header& header) { return header.name == "host"; };
  if (std::count_if(head_.headers.begin(), head_.headers.end(), is_host) > 1) return refuse(400, "the request names two hosts", true);
  if (head_.path.empty() || head_.path.front() != '/') return refuse(400, "the path of the request is malformed", true);
  Gate gate = server_->options.gate ? server_->options.gate(head_) : Gate{};
  exchange_->extra_headers = std::move(gate.headers);
  gated_ = true;
  gate_response_ = std::move(gate.response);
  const bool small = !head_.chunked && head_.content_length.value_or(0) <= kMostDiscardedBytes;
  if (gate_response_ && !small) return answer_and_close(*std::exchange(gate_response_, std::nullopt));
  read_body();
}

void Connection::read_body() {
  phase_ = Phase::body;
  body_end_ = Clock::now() + duration(limits().body_total_seconds);
  if (parser_->is_done()) return dispatch();
  if (beast::iequals(parser_->get()[beast::http::field::expect], "100-continue")) {
    // A few bytes into an empty send buffer: written without waiting.
    error_code ec;
    asio::write(socket_, asio::buffer(std::string_view("HTTP/1.1 100 Continue\r\n\r\n")), ec);
    if (ec) return close();
  }
  read_body_piece();
}

void Connection::read_body_piece() {
  const auto late = [this] { refuse(408, "the body of the request did not arrive in time", true); };
  const double left = std::chrono::duration<double>(body_end_ - Clock::now()).count();
  if (left <= 0) return late();  // a timer may never win against bytes that keep coming
  set_timer(std::min(limits().body_seconds, left), late);
  beast::http::async_read_some(socket_, buffer_, *parser_, [self = shared_from_this()](error_code ec, size_t) {
    if (self->phase_ == Phase::body) self->on_body(ec);
  });
}

void Connection::on_body(error_code ec) {
  if (ec == beast::http::error::body_limit) {
    return refuse(413, fmt::format("the body is larger than the limit of {} bytes", limits().body_bytes), true);
  }
  if (ec == beast::http::error::need_buffer) ec = {};
  if (ec && (ec.category() == asio::error::get_misc_category() || ec == asio::error::connection_reset ||
             ec == beast::http::error::partial_message)) {
    return close();
  }
  if (ec) return refuse(400, "the body is malformed: " + ec.message(), true);
  if (!parser_->is_done()) return read_body_piece();
  dispatch();
}

// A whole request: to a worker, unless the gate has answered already.
void Connection::dispatch() {
  phase_ = Phase::handled;
  set_timer(0, {});
  auto exchange = std::make_shared<Exchange>(exchange_);
  if (gate_response_) {
    watch();
    return exchange->respond(*std::exchange(gate_response_, std::nullopt));
  }
  Request request{head_, std::move(parser_->get().body())};
  parser_.reset();
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  watch();
  asio::post(server_->workers, [server = server_, request = std::move(request), exchange]() mutable {
    server->options.handler(std::move(request), std::move(exchange));
  });
}

void Connection::refuse(int status, std::string_view message, bool body_unread) {
  // A page of another origin may only read why it was refused if this answer, too, says so.
  if (!gated_ && server_->options.gate) exchange_->extra_headers = server_->options.gate(head_).headers;
  Response response;
  response.status = status;
  if (server_->options.error_body) response.body = server_->options.error_body(head_, status, message);
  body_unread_ = body_unread;
  answer_and_close(std::move(response));
}

void Connection::answer_and_close(Response response) {
  body_unread_ = true;
  phase_ = Phase::handled;
  exchange_->keep_alive = false;
  set_timer(0, {});
  Exchange(exchange_).respond(std::move(response));
}

void Connection::watch() {
  if (watching_ || buffer_.size() >= kMostPipelinedBytes) return;
  watching_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code ec) {
    self->watching_ = false;
    if (self->phase_ == Phase::handled && !self->body_unread_) self->on_watch(ec);
  });
}

void Connection::on_watch(error_code ec) {
  if (!ec) {
    const size_t bytes = socket_.read_some(buffer_.prepare(4096), ec);
    if (!ec) buffer_.commit(bytes);  // the next request, early
    if (ec == asio::error::would_block) ec = {};
  }
  if (ec) return client_gone(false);
  watch();
}

void Connection::flush() {
  if (!exchange_) return;
  bool cut_off = false, abort = false;
  {
    const std::lock_guard lock(exchange_->mutex);
    exchange_->wake_posted = exchange_->paced = false;
    cut_off = exchange_->cut_off;
    abort = exchange_->aborted;
    if (!cut_off && !writing_) {
      out_.clear();
      out_done_ = 0;
      out_.swap(exchange_->pending);
      exchange_->in_flight_bytes = out_.size();
    }
  }
  if (cut_off) return client_gone(true);
  if (writing_) return;
  if (!out_.empty()) return write_some();
  bool finished = false;
  {
    const std::lock_guard lock(exchange_->mutex);
    finished = exchange_->finished && exchange_->pending.empty();
  }
  if (finished && abort) return close();
  if (finished) answered();
}

void Connection::write_some() {
  const auto rest = [this] { return asio::buffer(out_.data() + out_done_, out_.size() - out_done_); };
  const auto count = [this](size_t bytes) {
    out_done_ += bytes;
    const std::lock_guard lock(exchange_->mutex);
    exchange_->in_flight_bytes = out_.size() - out_done_;
  };
  // What the send buffer takes goes at once, without timer and handler.
  error_code ec;
  count(socket_.write_some(rest(), ec));
  if (ec && ec != asio::error::would_block) return client_gone(false);
  if (out_done_ == out_.size()) return written();
  writing_ = true;
  set_timer(limits().stalled_seconds, [this] { client_gone(true); });
  socket_.async_write_some(rest(), [self = shared_from_this(), count](error_code failed, size_t bytes) {
    self->writing_ = false;
    if (self->phase_ != Phase::handled) return;
    if (failed) return self->client_gone(false);
    count(bytes);
    self->set_timer(0, {});
    if (self->out_done_ < self->out_.size()) return self->write_some();
    self->written();
  });
}

// The next pieces of a stream wait a moment for those that follow at once, unless there were few writes of late.
void Connection::written() {
  const Clock::time_point now = Clock::now();
  const double since = std::chrono::duration<double>(now - counted_).count();
  unpaced_ = std::max(0.0, std::min(limits().paced_burst, unpaced_ + since / limits().pace_seconds) - 1);  // no debt: a wake may come early
  counted_ = now;
  bool paced = false;
  {
    const std::lock_guard lock(exchange_->mutex);
    paced = exchange_->paced = unpaced_ < 1 && exchange_->streaming && !exchange_->finished && !exchange_->cut_off;
  }
  if (!paced) return flush();
  pace_.expires_after(duration((1 - unpaced_) * limits().pace_seconds));
  pace_.async_wait([self = shared_from_this()](error_code failed) {
    if (!failed) self->flush();  // else another timer took its place, or the connection ended
  });
}

void Connection::end_exchange(int status) {
  const std::shared_ptr<Exchange::State> exchange = std::move(exchange_);
  exchange_ = nullptr;
  bool told = false;
  std::function<void()> on_gone, wake;
  {
    const std::lock_guard lock(exchange->mutex);
    const bool complete = exchange->finished && !exchange->aborted && status != 499;
    if (!complete) {
      exchange->gone = true;
      on_gone = std::move(exchange->on_gone);
    }
    told = exchange->told;
    exchange->on_gone = nullptr;
    wake = std::move(exchange->wake);
    exchange->wake = nullptr;
    exchange->pending.clear();
  }
  --server_->exchanges;
  if (on_gone) on_gone();
  if (server_->options.on_answered) {
    server_->options.on_answered(head_, status, std::chrono::duration<double>(Clock::now() - begun_).count(), told);
  }
}

void Connection::answered() {
  const bool keep = exchange_->keep_alive && !server_->draining;
  end_exchange(exchange_->status);
  out_ = std::string();
  if (!keep) return linger();
  read_head(limits().idle_seconds);
}

// Our end is closed; what the client still sends is read away for a moment, or the kernel would answer it with a reset that
// can overtake the response.
void Connection::linger() {
  phase_ = Phase::lingering;
  error_code ec;
  socket_.shutdown(tcp::socket::shutdown_send, ec);
  if (ec) return close();
  set_timer(kLingerSeconds, [this] { close(); });
  discard(std::make_shared<std::array<char, 4096>>());
}

// Not into buffer_: a read of the head or body that timed out may still be pending there.
void Connection::discard(const std::shared_ptr<std::array<char, 4096>>& bytes) {
  socket_.async_read_some(asio::buffer(*bytes), [self = shared_from_this(), bytes](error_code ec, size_t) {
    if (self->phase_ != Phase::lingering) return;
    if (ec) return self->close();
    self->discard(bytes);
  });
}

void Connection::client_gone(bool cut_off) {
  if (cut_off) ++server_->cut_off;
  if (exchange_) end_exchange(499);
  close();
}

}  // namespace

Status Server::Impl::listen() {
  error_code ec;
  const asio::ip::address address = asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, ec);
  if (ec)
    return fail(Code::invalid_argument, "'{}' is no address to listen on (like 127.0.0.1, 0.0.0.0 or ::)", options.host);
  const tcp::endpoint endpoint(address, options.port);
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return fail(Code::unavailable, "cannot listen on {}:{}: {}", options.host, options.port, ec.message());
  port = acceptor.local_endpoint(ec).port();
  return {};
}

void Server::Impl::accept() {
  acceptor.async_accept([this](error_code ec, tcp::socket socket) { on_accept(ec, std::move(socket)); });
}

void Server::Impl::on_accept(error_code ec, tcp::socket socket) {
  if (ec == asio::error::operation_aborted || draining) return;
  if (ec) {
    // Out of file descriptors, most likely: others will be closed.
    accept_again.expires_after(std::chrono::milliseconds(100));
    return accept_again.async_wait([this](error_code failed) {
      if (!failed) accept();
    });
  }
  ++accepted;
  if (open < options.limits.connections) {
    auto connection = std::make_shared<Connection>(shared_from_this(), std::move(socket));
    connections.insert(connection);
    ++open;
    connection->start();
  } else {
    // Closed without a word: whoever floods us would not read it.
    error_code ignored;
    socket.close(ignored);
  }
  accept();
}

void Server::Impl::stop() {
  asio::post(io, [this] {
    draining = true;
    error_code ignored;
    acceptor.close(ignored);
    accept_again.cancel();
    const auto all = connections;
    for (const auto& connection : all) connection->close();
    work.reset();
  });
  workers.join();
  if (thread.joinable()) thread.join();
  {
    const std::lock_guard lock(post_mutex);
    alive = false;
  }
  io.restart();
  io.poll();  // what was posted meanwhile
}

Server::Server(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { impl_->stop(); }

Result<std::unique_ptr<Server>> Server::start(Options options) {
  auto impl = std::make_shared<Impl>(std::move(options));
  K3_TRY(impl->listen());
  impl->accept();
  impl->thread = std::thread([raw = impl.get()] {
    try {
      raw->io.run();
    } catch (const std::exception& e) {
      log_line(LogLevel::error, fmt::format("the io thread ended: {}", e.what()));
      std::abort();  // a server that answers nobody must not look alive
    }
  });
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::port() const { return impl_->port; }

void Server::drain() {
  asio::post(impl_->io, [impl = impl_] {
    impl->draining = true;
    error_code ignored;
    impl->acceptor.close(ignored);
    impl->accept_again.cancel();
    const auto all = impl->connections;
    for (const auto& connection : all) connection->close_if_idle();
  });
}

ServerStats Server::stats() const { return {impl_->open, impl_->exchanges, impl_->accepted, impl_->cut_off}; }

}  // namespace k3::http
