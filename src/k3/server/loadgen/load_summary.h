// A run in numbers, as JSON, as an HTML page. Latencies are those of requests that succeeded; failures are counted apart.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "k3/base/report/quantile.h"
#include "k3/server/loadgen/load_run.h"

namespace k3::server {

struct ErrorCount {
  std::string kind;   // "HTTP 503", "time-out", ...
  std::string first;  // message of the first one
  int64_t count = 0;
};

struct LoadSummary {
  int64_t planned = 0, sent = 0, ok = 0, failed = 0, cancelled = 0, retries = 0;
  int64_t prompt_tokens = 0, output_tokens = 0;                        // of requests that succeeded
  int64_t cached_tokens = 0, hit_prompt_tokens = 0, hit_requests = 0;  // of those whose answer tells cached tokens
  double duration_s = 0;
  Spread ttft_s, tpot_s, gap_s, e2e_s, lag_s;  // gap: between frames; lag: start behind the plan
  int64_t peak_running = 0;
  int64_t short_answers = 0;       // fewer output tokens than asked for
  int64_t length_differs = 0;      // prompts that the server counts otherwise than planned
  std::vector<ErrorCount> errors;  // most frequent first

  double requests_per_s() const { return duration_s > 0 ? static_cast<double>(ok) / duration_s : 0; }
  double output_per_s() const { return duration_s > 0 ? static_cast<double>(output_tokens) / duration_s : 0; }
  double prompt_per_s() const { return duration_s > 0 ? static_cast<double>(prompt_tokens) / duration_s : 0; }
  // NaN when no answer told its cached tokens.
  double hit_rate() const;
};

LoadSummary summarize(const LoadResult& result);

// "HTTP 503", "connection refused", ...
std::string error_kind(const RequestResult& result);

// How a run was made, for the heads of reports: names and values in order.
using Settings = std::vector<std::pair<std::string, std::string>>;

std::string load_json(const LoadResult& result, const LoadSummary& summary, const Settings& settings);

}  // namespace k3::server
