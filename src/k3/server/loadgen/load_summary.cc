#include "k3/server/loadgen/load_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "k3/base/json_writer.h"

namespace k3::server {
namespace {

// Most requests that were under way at once.
int64_t peak_running(const std::vector<RequestResult>& requests) {
  std::vector<std::pair<double, int>> events;
  for (const RequestResult& r : requests) {
    events.emplace_back(r.start_s, 1);
    events.emplace_back(r.end_s, -1);
  }
  std::sort(events.begin(), events.end());  // ends before starts of the same moment
  int64_t running = 0, most = 0;
  for (const auto& [at, change] : events) most = std::max(most, running += change);
  return most;
}

void count_ok(const RequestResult& r, LoadSummary& s) {
  ++s.ok;
  s.prompt_tokens += r.prompt_tokens >= 0 ? r.prompt_tokens : r.input_tokens;
  s.output_tokens += std::max<int64_t>(0, r.output_tokens);
  s.short_answers += r.output_tokens >= 0 && r.output_tokens < r.asked_tokens ? 1 : 0;
  s.length_differs += r.prompt_tokens >= 0 && r.prompt_tokens != r.input_tokens ? 1 : 0;
  if (r.cached_tokens < 0 || r.prompt_tokens < 0) return;
  ++s.hit_requests;
  s.cached_tokens += r.cached_tokens;
  s.hit_prompt_tokens += r.prompt_tokens;
}

void write_spread(JsonWriter& w, std::string_view name, const Spread& s) {
  w.key(name).begin_object().field("count", s.count).field("mean", s.mean).field("min", s.min).field("p50", s.p50);
  w.field("p90", s.p90).field("p95", s.p95).field("p99", s.p99).field("max", s.max).end_object();
}

void write_optional(JsonWriter& w, std::string_view name, double value) {
  w.key(name);
  value < 0 ? w.null() : w.value(value);
}

void write_optional(JsonWriter& w, std::string_view name, int64_t value) {
  w.key(name);
  value < 0 ? w.null() : w.value(value);
}

void write_request(JsonWriter& w, const RequestResult& r) {
  w.begin_object().field("index", r.index);
  write_optional(w, "session", r.session);
  w.field("turn", r.turn).field("outcome", r.ok() ? "ok" : error_kind(r));
  w.field("planned_s", r.planned_s).field("start_s", r.start_s);
  write_optional(w, "first_token_s", r.first_token_s);
  write_optional(w, "last_token_s", r.last_token_s);
  w.field("end_s", r.end_s).field("input_tokens", r.input_tokens);
  write_optional(w, "prompt_tokens", r.prompt_tokens);
  write_optional(w, "cached_tokens", r.cached_tokens);
  w.field("asked_tokens", r.asked_tokens);
  write_optional(w, "output_tokens", r.output_tokens);
  w.field("frames", r.frames).field("retries", r.retries).field("finish_reason", r.finish_reason);
  if (!r.error.empty()) w.field("error", r.error);
  w.end_object();
}

void write_summary(JsonWriter& w, const LoadSummary& s) {
  w.begin_object();
  w.field("planned", s.planned).field("sent", s.sent).field("ok", s.ok).field("failed", s.failed);
  w.field("cancelled", s.cancelled).field("retries", s.retries).field("duration_s", s.duration_s);
  w.field("requests_per_s", s.requests_per_s()).field("prompt_tokens", s.prompt_tokens);
  w.field("prompt_tokens_per_s", s.prompt_per_s()).field("output_tokens", s.output_tokens);
  w.field("output_tokens_per_s", s.output_per_s()).field("hit_requests", s.hit_requests);
  w.field("cached_tokens", s.cached_tokens).field("hit_rate", s.hit_rate()).field("peak_running", s.peak_running);
  w.field("short_answers", s.short_answers).field("length_differs", s.length_differs);
  write_spread(w, "ttft_s", s.ttft_s);
  write_spread(w, "tpot_s", s.tpot_s);
  write_spread(w, "gap_s", s.gap_s);
  write_spread(w, "e2e_s", s.e2e_s);
  write_spread(w, "lag_s", s.lag_s);
  w.end_object();
}

}  // namespace

double LoadSummary::hit_rate() const {
  if (hit_prompt_tokens == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(cached_tokens) / static_cast<double>(hit_prompt_tokens);
}

std::string error_kind(const RequestResult& r) {
  switch (r.outcome) {
    case Outcome::ok: return "ok";
    case Outcome::http_error: return fmt::format("HTTP {}", r.status);
    case Outcome::refused: return "connection refused";
    case Outcome::timed_out: return "time-out";
    case Outcome::cut: return "cut off";
    case Outcome::broken: return "broken connection";
    case Outcome::bad_answer: return "bad answer";
    case Outcome::cancelled: return "cancelled";
  }
  return "";
}

LoadSummary summarize(const LoadResult& result) {
  LoadSummary s;
  s.planned = result.planned;
  s.duration_s = result.duration_s;
  std::vector<double> ttft, tpot, e2e, lag;
  std::map<std::string, ErrorCount> errors;
  for (const RequestResult& r : result.requests) {
    ++s.sent;
    s.retries += r.retries;
    lag.push_back(r.start_s - r.planned_s);
    if (r.ok()) {
      count_ok(r, s);
      ttft.push_back(r.ttft_s());
      e2e.push_back(r.e2e_s());
      if (r.tpot_s() >= 0) tpot.push_back(r.tpot_s());
      continue;
    }
    if (r.outcome == Outcome::cancelled) {
      ++s.cancelled;
      continue;
    }
    ++s.failed;
    ErrorCount& error = errors[error_kind(r)];
    if (error.count++ == 0) error.kind = error_kind(r), error.first = r.error;
  }
  for (auto& [kind, error] : errors) s.errors.push_back(std::move(error));
  std::stable_sort(s.errors.begin(), s.errors.end(),
                   [](const ErrorCount& a, const ErrorCount& b) { return a.count > b.count; });
  s.ttft_s = spread_of(std::move(ttft));
  s.tpot_s = spread_of(std::move(tpot));
  s.e2e_s = spread_of(std::move(e2e));
  s.lag_s = spread_of(std::move(lag));
  s.gap_s = spread_of({result.gaps_s.begin(), result.gaps_s.end()});
  s.peak_running = peak_running(result.requests);
  return s;
}

std::string load_json(const LoadResult& result, const LoadSummary& summary, const Settings& settings) {
  JsonWriter w;
  w.begin_object().key("settings").begin_object();
  for (const auto& [name, value] : settings) w.field(name, value);
  w.end_object().field("interrupted", result.interrupted).field("connections", result.connections).key("summary");
  write_summary(w, summary);
  w.key("errors").begin_array();
  for (const ErrorCount& error : summary.errors) {
    w.begin_object().field("kind", error.kind).field("count", error.count).field("first", error.first).end_object();
  }
  w.end_array().key("requests").begin_array();
  for (const RequestResult& request : result.requests) write_request(w, request);
  w.end_array().end_object();
  return w.text() + "\n";
}

}  // namespace k3::server
