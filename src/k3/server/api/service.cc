// The table of routes, and what is decided before a body is read: Host, CORS, key, route, method, type, draining.
#include "k3/server/api/service.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <optional>
#include <thread>

#include "k3/base/log.h"
#include "k3/server/api/routes/routes.h"
#include "k3/server/web/assets.h"

namespace k3::server {
namespace {

struct RouteEntry {
  std::string_view method, path;  // a path that ends with '/' takes one more part
  void (*handler)(Call);
  bool generates = false;  // refused while draining
  bool open = false;       // no key needed
  Envelope envelope = Envelope::openai;
};

// Every route is also served without its /v1.
constexpr std::array kRoutes = {
    RouteEntry{"POST", "/v1/chat/completions", chat_completions, true},
    RouteEntry{"POST", "/v1/completions", text_completions, true},
    RouteEntry{"POST", "/v1/responses", responses, true},
    RouteEntry{"POST", "/v1/messages", anthropic_messages, true, false, Envelope::anthropic},
    RouteEntry{"POST", "/v1/messages/count_tokens", anthropic_count_tokens, false, false, Envelope::anthropic},
    RouteEntry{"POST", "/v1/embeddings", embeddings},
    RouteEntry{"GET", "/v1/models", list_models},
    RouteEntry{"GET", "/v1/models/", one_model},
    RouteEntry{"POST", "/v1/tokenize", tokenize},
    RouteEntry{"POST", "/v1/detokenize", detokenize},
    RouteEntry{"POST", "/v1/apply-template", apply_template},
    RouteEntry{"GET", "/v1/props", props},
    RouteEntry{"GET", "/v1/slots", list_slots},
    RouteEntry{"POST", "/v1/slots/", slot_action},
    RouteEntry{"POST", "/v1/reset_prefix_cache", reset_prefix_cache},
    RouteEntry{"GET", "/v1/health", health, false, true},
    RouteEntry{"GET", "/v1/metrics", metrics, false, true},
    RouteEntry{"GET", "/v1/version", version},
};

constexpr size_t kMostShownBytes = 200;  // of what a client sent, in messages

bool path_fits(const RouteEntry& route, std::string_view path, std::string& rest) {
  constexpr std::string_view kBase = "/v1";
  std::string_view full = route.path;
  if (!path.starts_with("/v1/")) full.remove_prefix(kBase.size());
  if (!full.ends_with('/')) return path == full;
  if (!path.starts_with(full) || path.size() == full.size()) return false;
  rest = path.substr(full.size());
  return true;
}

struct Found {
  const RouteEntry* route = nullptr;
  std::string rest, allowed;  // allowed: methods of the path, when the method is the only thing wrong
};

Found find_route(const http::RequestHead& head) {
  const std::string_view method = head.method == "HEAD" ? "GET" : std::string_view(head.method);
  Found found;
  for (const RouteEntry& route : kRoutes) {
    std::string rest;
    if (!path_fits(route, head.path, rest)) continue;
    if (route.method == method) {
      found.route = &route;
      found.rest = std::move(rest);
      return found;
    }
    found.allowed += (found.allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  return found;
}

// Of what is refused before a route is known to take it.
Envelope envelope_of(const http::RequestHead& head) {
  const bool anthropic = head.path.starts_with("/v1/messages") || head.path.starts_with("/messages");
  return anthropic ? Envelope::anthropic : Envelope::openai;
}

// The time taken depends on the length of the key alone.
bool same_key(std::string_view given, std::string_view key) {
  if (key.empty()) return false;
  uint8_t different = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < key.size(); ++i) {
    const char c = given.empty() ? '\0' : given[i % given.size()];
    different = static_cast<uint8_t>(different | (static_cast<uint8_t>(c) ^ static_cast<uint8_t>(key[i])));
  }
  return different == 0;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return out;
}

bool has_key(const http::RequestHead& head, const std::vector<std::string>& keys) {
  std::string_view given = head.header("x-api-key");
  const std::string_view authorization = head.header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  if (authorization.size() > kBearer.size()) {
    if (lower(authorization.substr(0, kBearer.size())) == kBearer) given = authorization.substr(kBearer.size());
  }
  bool found = false;
  for (const std::string& key : keys) found = same_key(given, key) || found;
  return found;
}

bool origin_allowed(std::string_view origin, std::string_view rule) {
  if (origin.empty() || rule.empty()) return false;
  if (rule == "*" || rule == origin) return true;
  if (rule != "localhost") return false;
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;
  std::string_view host = origin.substr(scheme + 3);
  if (const size_t colon = host.rfind(':'); colon != std::string_view::npos && !host.ends_with(']'))
    host = host.substr(0, colon);
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

// The name in a Host header, without port and final dot.
std::string host_name(std::string_view host) {
  const size_t bracket = host.starts_with('[') ? host.find("]:") : std::string_view::npos;
  if (host.starts_with('[')) return std::string(host.substr(0, bracket == std::string_view::npos ? bracket : bracket + 1));
  std::string name = lower(host.substr(0, host.rfind(':')));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

bool is_address(const std::string& name) {
  in6_addr bytes;
  if (!name.starts_with('[')) return ::inet_pton(AF_INET, name.c_str(), &bytes) == 1;
  return name.ends_with(']') && ::inet_pton(AF_INET6, name.substr(1, name.size() - 2).c_str(), &bytes) == 1;
}

// A page of evil.example whose name suddenly leads to this machine is of the same origin as we are, for its browser: no CORS
// holds it back, but its name still stands in Host. An address there leads nowhere else. Programs may leave Host out.
bool host_allowed(std::string_view host, const std::vector<std::string>& allowed) {
  if (host.empty()) return true;
  const std::string name = host_name(host);
  if (name == "localhost" || name.ends_with(".localhost") || is_address(name)) return true;
  return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& other) { return lower(other) == name; });
}

bool is_json(std::string_view content_type) {
  std::string type = lower(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  return type == "application/json";
}

// Looks after silent streams.
class Pinger {
 public:
  Pinger(std::shared_ptr<LiveAnswers> answers, double ping_seconds) {
    const std::chrono::duration<double> pause(std::min(1.0, ping_seconds / 2));
    thread_ = std::thread([this, answers = std::move(answers), pause] {
      std::unique_lock lock(mutex_);
      while (!changed_.wait_for(lock, pause, [this] { return stop_; })) answers->ping_all();
    });
  }
  Pinger(const Pinger&) = delete;
  ~Pinger() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

struct Service::Impl : std::enable_shared_from_this<Service::Impl> {
  std::shared_ptr<Context> context;
  bool check_host = false;
  std::atomic<bool> draining{false};
  std::optional<Pinger> pinger;
  std::unique_ptr<http::Server> server;
  std::atomic<http::Server*> live{nullptr};  // server, while requests may ask it something

  http::Gate gate(const http::RequestHead& head) const;
  std::optional<ApiError> refuse(const http::RequestHead& head, const Found& found) const;
  void handle(http::Request request, std::shared_ptr<http::Exchange> exchange) const;
};

std::optional<ApiError> Service::Impl::refuse(const http::RequestHead& head, const Found& found) const {
  const auto& keys = context->options.api_keys;
  const bool open = found.route != nullptr && found.route->open;
  if (!keys.empty() && !open && !has_key(head, keys)) {
    return status_error(401, "no valid API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'");
  }
  if (found.route == nullptr && found.allowed.empty())
    return status_error(404, fmt::format("there is no route {} {}", head.method, head.path));
  if (found.route == nullptr) return status_error(405, fmt::format("{} takes {}", head.path, found.allowed));
  if (draining && found.route->generates) {
    ApiError error = status_error(503, "the server is stopping");
    error.retry_after_seconds = 1;
    return error;
  }
  if (head.method != "POST") return std::nullopt;
  if (!head.content_length && !head.chunked) return status_error(411, "a POST needs a Content-Length");
  const bool empty = !head.chunked && head.content_length == uint64_t{0};
  if (!empty && !is_json(head.header("content-type"))) return status_error(415, "the body must be application/json");
  const std::string_view coding = head.header("content-encoding");
  if (!empty && !coding.empty() && coding != "identity") {
    return status_error(415, "a body with a Content-Encoding is not taken; send it as it is");
  }
  return std::nullopt;
}

http::Gate Service::Impl::gate(const http::RequestHead& head) const {
  http::Gate gate;
  const std::string_view origin = head.header("origin");
  const bool cors = origin_allowed(origin, context->options.cors);
  if (cors) {
    const bool any = context->options.cors == "*";
    gate.headers.push_back({"Access-Control-Allow-Origin", any ? "*" : std::string(origin)});
    gate.headers.push_back(
        {"Access-Control-Expose-Headers", "x-request-id, X-Msh-Usage-Prompt-Tokens, X-Msh-Usage-Cached-Tokens"});
    if (!any) gate.headers.push_back({"Vary", "Origin"});
  }
  const Envelope envelope = envelope_of(head);
  if (const std::string_view host = head.header("host"); check_host && !host_allowed(host, context->options.allowed_hosts)) {
    const std::string name = host_name(host.substr(0, kMostShownBytes));
    gate.response = error_response(
        status_error(
            403, fmt::format("the Host header names '{0}', which this server does not go by; ask localhost or an address, "
                             "or start it with --allowed-host {0}",
                             name)),
        envelope);
    return gate;
  }
  if (head.method == "OPTIONS") {
    if (cors) {
      gate.headers.push_back({"Access-Control-Allow-Methods", "GET, POST, OPTIONS"});
      const std::string_view asked = head.header("access-control-request-headers");
      gate.headers.push_back(
          {"Access-Control-Allow-Headers", asked.empty() ? "authorization, content-type, x-api-key" : std::string(asked)});
      gate.headers.push_back({"Access-Control-Max-Age", "600"});
    }
    gate.headers.push_back({"Allow", "GET, POST, OPTIONS"});
    gate.response = http::Response{.status = 204};
    return gate;
  }
  const Found found = find_route(head);
  if (found.route == nullptr && found.allowed.empty()) {
    // The page itself needs no key: it asks for one.
    if (const web::Asset* asset = web::find_asset(head.path)) {
      if (head.method == "GET" || head.method == "HEAD") {
        gate.response = http::Response{.content_type = std::string(asset->content_type),
                                       .headers = {{"Cache-Control", "no-cache"},
                                                   {"Content-Security-Policy", std::string(web::kContentSecurityPolicy)},
                                                   {"X-Content-Type-Options", "nosniff"},
                                                   {"Referrer-Policy", "no-referrer"}},
                                       .body = std::string(asset->bytes)};
        return gate;
      }
    }
  }
  if (const auto error = refuse(head, found)) {
    gate.response = error_response(*error, envelope);
    if (error->status == 405) gate.response->headers.push_back({"Allow", found.allowed});
  }
  return gate;
}

void Service::Impl::handle(http::Request request, std::shared_ptr<http::Exchange> exchange) const {
  Found found = find_route(request.head);
  Call call{context, std::move(request), std::move(exchange), std::move(found.rest)};
  const auto kept = call.exchange;
  const Envelope envelope = found.route->envelope;
  try {
    found.route->handler(std::move(call));
  } catch (const std::bad_alloc&) {
    kept->respond(error_response(status_error(503, "the server is out of memory"), envelope));
  } catch (const std::exception& e) {
    log_line(LogLevel::error, fmt::format("a route threw: {}", e.what()));
    kept->respond(error_response(status_error(500, "internal error"), envelope));
  }
}

Service::Service(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Service::~Service() {
  impl_->live = nullptr;
  impl_->pinger.reset();
  impl_->server.reset();
}

Result<std::unique_ptr<Service>> Service::start(Context context, http::Options http) {
  auto impl = std::make_shared<Impl>();
  impl->context = std::make_shared<Context>(std::move(context));
  impl->check_host = http::is_loopback(http.host) || !impl->context->options.allowed_hosts.empty();
  Impl* raw = impl.get();  // its server ends before it
  http.gate = [raw](const http::RequestHead& head) { return raw->gate(head); };
  http.handler = [raw](http::Request request, std::shared_ptr<http::Exchange> exchange) {
    raw->handle(std::move(request), std::move(exchange));
  };
  http.error_body = [](const http::RequestHead& head, int status, std::string_view message) {
    return error_json(status_error(status, std::string(message)), envelope_of(head));
  };
  impl->context->http_stats = [raw] {
    const http::Server* server = raw->live;
    return server != nullptr ? server->stats() : http::ServerStats{};
  };
  http.on_answered = [raw](const http::RequestHead& head, int status, double seconds, bool answer_told) {
    // Requests that generate have a line of their own, with more in it.
    const Found found = find_route(head);
    const bool told = answer_told || (found.route != nullptr && found.route->generates && (status == 200 || status == 499));
    if (told || !raw->context->log || (found.route != nullptr && found.route->open)) return;
    raw->context->log(fmt::format("{} {} {} {} {:.1f} ms", head.request_id.empty() ? "-" : head.request_id,
                                  head.method.empty() ? "-" : head.method, head.path.substr(0, kMostShownBytes), status,
                                  seconds * 1e3));
  };
  K3_TRY_ASSIGN(impl->server, http::Server::start(std::move(http)));
  impl->live = impl->server.get();
  const double ping_seconds = impl->context->options.ping_seconds;
  if (ping_seconds > 0) impl->pinger.emplace(impl->context->answers, ping_seconds);
  return std::unique_ptr<Service>(new Service(std::move(impl)));
}

uint16_t Service::port() const { return impl_->server->port(); }

void Service::drain() {
  impl_->draining = true;
  impl_->context->engine.drain();
  impl_->server->drain();
}

void Service::interrupt() { impl_->context->answers->interrupt_all(); }

bool Service::drained() const { return impl_->context->engine.drained() && impl_->server->stats().exchanges == 0; }

http::ServerStats Service::http_stats() const { return impl_->server->stats(); }

}  // namespace k3::server
