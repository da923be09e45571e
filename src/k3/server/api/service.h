// Purpose:  the server: routes, authentication, and what answers each route, over an engine.
// Shapes:   none.
// Units:    seconds.
// Memory:   the engine, tokenizer and chat format outlive it.
// Threads:  start, drain and the destructor from one thread.
// Errors:   start: as http::Server::start.
// Source:   api.md 1, 12.
#pragma once

#include <atomic>
#include <memory>

#include "k3/server/api/context.h"
#include "k3/server/http/http.h"

namespace k3::server {

class Service {
 public:
  // http.gate, handler, error_body and on_answered are filled in here.
  static Result<std::unique_ptr<Service>> start(Context context, http::Options http);
  ~Service();

  uint16_t port() const;
  void drain();          // new requests are refused, the engine takes no more, connections end after their answer
  void interrupt();      // every answer under way ends now, with a reason
  bool drained() const;  // nothing is under way
  http::ServerStats http_stats() const;

 private:
  struct Impl;
  explicit Service(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace k3::server
