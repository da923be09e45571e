// Sends the planned requests and measures: one thread, one result a request. See LoadOptions for who sends when.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "k3/base/result.h"
#include "k3/server/loadgen/http_client.h"
#include "k3/server/loadgen/url.h"
#include "k3/server/loadgen/prompt.h"

namespace k3::server {

// trace: by the trace's clock; a later turn of a session starts when the one before is finished and its think time is over.
// sequential: one at a time, in the order of the list. users: N clients, each takes the next session (or lone request) when
// it is done with one. poisson: sessions and lone requests arrive at random with a rate. Closed loops: sequential and users.
enum class Pacing { trace, sequential, users, poisson };

struct LoadOptions {
  Url url;
  HttpTimeouts timeouts;
  std::string api_key, model;
  bool chat = false;  // chat completions of words, instead of completions of token ids
  int64_t vocab = 1000;
  bool ignore_eos = true;
  double temperature = 0;
  std::string extra_body;  // fields put into every request: the inside of a JSON object, or ""
  Pacing pacing = Pacing::trace;
  double speed = 1;  // of the trace's clock and of think times
  int64_t users = 1;
  double think_s = 0;  // users: between two requests, where the workload tells no think time
  double rate_per_s = 1;
  uint64_t seed = 0;       // of arrivals
  double duration_s = 0;   // no request starts later; 0: all start
  bool retry_429 = false;  // wait as long as Retry-After says (1 s without it), at most kMostRetries times
};
inline constexpr int64_t kMostRetries = 20;

enum class Outcome { ok, http_error, refused, timed_out, cut, broken, bad_answer, cancelled };

// Times in seconds since the start of the run; -1 for what did not happen or was not said.
struct RequestResult {
  int64_t index = 0;  // in the workload
  int64_t session = -1, turn = 0;
  double planned_s = 0, start_s = 0, first_token_s = -1, last_token_s = -1, end_s = 0;
  int64_t input_tokens = 0, prompt_tokens = -1, cached_tokens = -1;  // planned; as the server counts
  int64_t asked_tokens = 0, output_tokens = -1, frames = 0;          // of output; frames with text
  int64_t retries = 0;
  int status = 0;
  Outcome outcome = Outcome::cancelled;
  std::string finish_reason, error;

  bool ok() const { return outcome == Outcome::ok; }
  double ttft_s() const { return first_token_s - start_s; }
  double e2e_s() const { return end_s - start_s; }
  // Between output tokens: the first token is not counted, as it is the prefill's. -1 for answers of one token.
  double tpot_s() const {
    const bool several = output_tokens > 1 && frames > 1;
    return several ? (last_token_s - first_token_s) / static_cast<double>(output_tokens - 1) : -1;
  }
};

struct LoadResult {
  std::vector<RequestResult> requests;  // in the order of their end
  std::vector<float> gaps_s;            // between frames with text, of all streams
  double duration_s = 0;
  int64_t planned = 0, connections = 0;
  bool interrupted = false;
};

// `stop` becomes true (Ctrl-C): what is under way is cancelled, what was measured is returned. `progress` gets the number of
// requests that are done. not_found: the host has no address. Failures of requests are results, not errors.
Result<LoadResult> run_load(const std::vector<PlannedRequest>& requests, const LoadOptions& options,
                            const std::atomic<bool>& stop, const std::function<void(int64_t done)>& progress);

// The JSON body of a request.
std::string request_body(const PlannedRequest& request, const LoadOptions& options);

// What GET /v1/models says of the model to ask (the first one when `wanted` is empty).
struct ServedModel {
  std::string id;
  int64_t n_vocab = 0, max_model_len = 0;  // 0: not said
};
Result<ServedModel> ask_model(const Url& url, const HttpTimeouts& timeouts, const std::string& api_key,
                              const std::string& wanted);

}  // namespace k3::server
