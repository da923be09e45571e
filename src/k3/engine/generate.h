// Purpose:  the plain generation loop of one sequence: feed the prompt, then sample and feed token by token.
// Shapes:   none.
// Units:    tokens, seconds.
// Memory:   the runner owns the caches.
// Threads:  one thread; `stop` may be set from a signal handler or another thread.
// Errors:   those of Runner::feed and Sampler. A full context is a finish reason, not an error.
// Source:   api.md 3-6 (finish reasons, stop rules).
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "k3/model/model.h"
#include "k3/ops/sampling/sampling.h"

namespace k3 {

enum class StopReason {
  stop_token,
  stop_string,  // the sink asked for an end
  length,       // max_tokens
  context,      // no room left
  cancelled,
};
std::string_view stop_reason_text(StopReason reason);

struct GenerateOptions {
  ops::SamplingParams sampling;
  int64_t max_tokens = 0;         // 0: all the room left
  std::vector<int32_t> stop_ids;  // end tokens of the model
  bool ignore_eos = false;
  const std::atomic<bool>* stop = nullptr;                      // set: cancelled at the next token or chunk
  std::function<void(int64_t done, int64_t total)> on_prefill;  // tokens of the prompt done
};

struct GenerateResult {
  std::vector<int32_t> ids;       // generated, with the stop token when one came
  int64_t prompt_tokens_fed = 0;  // less than the prompt when cancelled inside it
  bool last_id_unfed = false;     // the last generated token is not in the cache yet
  StopReason reason = StopReason::length;
  double prefill_seconds = 0, decode_seconds = 0;

  // Tokens after the first, which the prefill already paid for.
  double decode_tokens_per_second() const {
    return decode_seconds > 0 && ids.size() > 1 ? static_cast<double>(ids.size() - 1) / decode_seconds : 0;
  }
};

// The sink sees every generated token (stop tokens too) and answers false to end with stop_string.
using TokenSink = std::function<bool(int32_t id)>;

// `history` are the ids already in the cache (for penalties).
Result<GenerateResult> generate(Runner& runner, int32_t sequence, std::span<const int32_t> history,
                                std::span<const int32_t> prompt, const GenerateOptions& options, const TokenSink& sink);

// Finds stop strings in a stream of text and holds back what could be the start of one.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Text that can be shown now. After a match matched() is true and nothing more comes.
  std::string push(std::string_view text);
  std::string finish();  // what was held back
  bool matched() const { return !matched_stop_.empty(); }
  const std::string& matched_stop() const { return matched_stop_; }  // the longest of those complete first; empty: none

 private:
  std::vector<std::string> stops_;
  std::string held_, matched_stop_;
};

}  // namespace k3
