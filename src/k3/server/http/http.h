// Purpose:  HTTP/1.1 as the routes see it: a request that has arrived whole, and an exchange that answers it, at once or as a
//           stream. Beast and Asio are hidden behind it.
// Shapes:   none.
// Units:    bytes, seconds.
// Memory:   an Exchange is shared by whoever answers; the output of one connection is bounded (Limits::output_bytes).
// Threads:  one io thread owns all sockets. `gate` runs on it and must be quick; `handler` runs on one of a few worker threads.
//           Every member of Exchange may be called from any thread and never blocks.
// Errors:   what a client does wrong is answered here (400, 408, 413, 431) or by the gate; a client that goes away, stops
//           reading or stays silent is closed, and the exchange's on_gone is called.
// Source:   api.md 1, 12.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3::http {

struct Header {
  std::string name, value;
};

struct RequestHead {
  std::string method, path, query;  // path without the query, percent escapes undone
  std::vector<Header> headers;      // names in lower case
  std::string request_id;           // the client's x-request-id made harmless, or one of ours
  std::string remote;
  std::optional<uint64_t> content_length;
  bool chunked = false;

  std::string_view header(std::string_view lower_name) const;  // "" when absent
};

struct Request {
  RequestHead head;
  std::string body;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<Header> headers = {};
  std::string body = {};
  bool told = false;  // whoever answers has written the line of the log
};

std::string_view status_text(int status);

// Letters, digits and -_.: of the client's id, at most 128 of them; empty: none usable.
std::string harmless_request_id(std::string_view text);
std::string new_request_id();
// An address to listen on that this machine alone can reach.
bool is_loopback(std::string_view address);
// Undoes percent escapes; nothing when one is broken or gives a control character.
std::optional<std::string> decode_path(std::string_view raw);

class Exchange {
 public:
  struct State;  // exchange.h
  explicit Exchange(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // One answer: respond(), or begin_stream() then write()* then finish(). What comes after the end is ignored.
  void respond(Response response);
  void begin_stream(int status, std::string_view content_type, std::vector<Header> headers);
  bool write(std::string_view text);  // false: the client is gone, or reads too slowly and has been cut off
  void finish();
  void abort();  // closes without an end, for streams that cannot be completed

  // Called once, on the io thread, when the client goes away before the answer is complete; at once when it has gone
  // already.
  void on_gone(std::function<void()> callback);
  bool gone() const;
  bool started() const;  // the head of the answer is out

 private:
  std::shared_ptr<State> state_;
};

struct Limits {
  uint64_t body_bytes = uint64_t{64} << 20;
  uint32_t header_bytes = 32 << 10;
  size_t output_bytes = size_t{1} << 20;  // of a stream, not read yet by the client; at least twice its largest write
  int64_t connections = 8192;
  double head_seconds = 30;         // from accept to the end of the first head
  double body_seconds = 120;        // without a byte of the body
  double body_total_seconds = 600;  // from the end of the head to the end of the body
  double idle_seconds = 120;        // from an answer to the end of the next head
  double stalled_seconds = 30;      // without a byte being read by the client
  // Between two writes of a stream: tokens that come faster share one. Nobody sees 4 ms; on a machine whose cores compute, a
  // wake of the io thread and of the client for each of 600 tokens a second costs 5 % of them. But the first writes go at once, and some
  // after a pause: the head, what a stream opens with and the first token, which somebody waits for.
  double pace_seconds = 0.004;
  double paced_burst = 4;  // writes that are not held back; each pace_seconds another one, up to so many
  int send_buffer_bytes = 0;        // of the kernel; 0: its default
};

struct Gate {
  std::vector<Header> headers = {};       // added to whatever answer is given
  std::optional<Response> response = {};  // set: the answer; the body is not looked at
};

struct Options {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any
  int workers = 2;
  Limits limits;
  std::function<Gate(const RequestHead&)> gate;  // of requests that are refused here, too: for its headers alone
  std::function<void(Request, std::shared_ptr<Exchange>)> handler;
  // JSON of errors found here; of the head, what has been read of it.
  std::function<std::string(const RequestHead&, int status, std::string_view message)> error_body;
  // io thread; status 499: the client went away; told: Response::told
  std::function<void(const RequestHead&, int status, double seconds, bool told)> on_answered;
};

struct ServerStats {
  int64_t connections = 0, exchanges = 0;  // now
  int64_t accepted = 0, cut_off = 0;       // so far; cut_off: did not read
};

class Server {
 public:
  static Result<std::unique_ptr<Server>> start(Options options);
  ~Server();  // closes everything

  uint16_t port() const;
  void drain();  // no new connections, idle ones are closed, others after their answer
  ServerStats stats() const;

  struct Impl;

 private:
  explicit Server(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace k3::http
