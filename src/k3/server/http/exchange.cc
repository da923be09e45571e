#include "k3/server/http/exchange.h"

#include <algorithm>
#include <fmt/format.h>

namespace k3::http {
namespace {

// Lets the io thread look at the output; one post at a time is enough. Pieces of a stream wait for the next write due.
void wake(Exchange::State& state, bool piece = false) {
  if (state.wake_posted || !state.wake || (piece && state.paced)) return;
  state.wake_posted = true;
  state.wake();
}

void append_chunk(const Exchange::State& state, std::string& out, std::string_view text) {
  if (state.head_only || text.empty()) return;
  if (state.chunked) {
    out += fmt::format("{:x}\r\n", text.size());
    out += text;
    out += "\r\n";
  } else {
    out += text;
  }
}

}  // namespace

std::string head_text(const Exchange::State& state, int status, std::string_view content_type,
                      const std::vector<Header>& headers, std::optional<size_t> length) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, status_text(status));
  const auto add = [&](std::string_view name, std::string_view value) { out += fmt::format("{}: {}\r\n", name, value); };
  if (!content_type.empty()) add("Content-Type", content_type);
  if (length) {
    if (status != 204) add("Content-Length", std::to_string(*length));
  } else if (state.chunked) {
    add("Transfer-Encoding", "chunked");
  }
  add("x-request-id", state.request_id);
  for (const Header& header : state.extra_headers) add(header.name, header.value);
  for (const Header& header : headers) add(header.name, header.value);
  add("Connection", state.keep_alive ? "keep-alive" : "close");
  return out += "\r\n";
}

void Exchange::respond(Response response) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (s.started || s.gone) return;
  s.started = s.finished = true;
  s.status = response.status;
  s.told = response.told;
  s.pending = head_text(s, response.status, response.body.empty() ? "" : response.content_type, response.headers,
                        response.body.size());
  if (!s.head_only) s.pending += response.body;
  wake(s);
}

void Exchange::begin_stream(int status, std::string_view content_type, std::vector<Header> headers) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (s.started || s.gone) return;
  s.started = s.streaming = true;
  s.status = status;
  if (!s.chunked) s.keep_alive = false;
  s.pending = head_text(s, status, content_type, headers, std::nullopt);
  wake(s);
}

bool Exchange::write(std::string_view text) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (s.gone || s.cut_off || !s.streaming || s.finished) return false;
  // What comes as one piece (an echoed prompt, all from before the admission) is no sign of a slow reader.
  s.output_bytes = std::max(s.output_bytes, 2 * text.size());
  if (s.pending.size() + s.in_flight_bytes + text.size() > s.output_bytes) {
    s.cut_off = true;
    wake(s);
    return false;
  }
  append_chunk(s, s.pending, text);
  wake(s, true);
  return true;
}

void Exchange::finish() {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (s.gone || !s.streaming || s.finished) return;
  s.finished = true;
  if (s.chunked && !s.head_only) s.pending += "0\r\n\r\n";
  wake(s);
}

void Exchange::abort() {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (s.gone || s.finished) return;
  s.aborted = s.finished = true;
  s.keep_alive = false;
  wake(s);
}

void Exchange::on_gone(std::function<void()> callback) {
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    if (!s.gone && !s.cut_off) {
      if (!s.finished) s.on_gone = std::move(callback);
      return;
    }
  }
  callback();
}

bool Exchange::gone() const {
  const std::lock_guard lock(state_->mutex);
  return state_->gone || state_->cut_off;
}

bool Exchange::started() const {
  const std::lock_guard lock(state_->mutex);
  return state_->started;
}

}  // namespace k3::http
