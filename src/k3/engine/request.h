// Purpose:  what the engine is asked to generate, and how it tells what happened.
// Shapes:   none.
// Units:    tokens, seconds.
// Memory:   a Request is owned by the engine from submit on; callbacks own what they capture.
// Threads:  callbacks run on the engine's thread, must not block and must not call the engine back.
// Errors:   a request ends with exactly one on_done, whatever happens.
// Source:   api.md 3, 4, 9, 12; serving.md 9.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/cache/hybrid_cache.h"
#include "k3/format/grammar/constraint.h"
#include "k3/ops/sampling/sampling.h"

namespace k3 {

enum class RequestId : uint64_t {};

enum class EndReason {
  stop_token,   // one of stop_ids
  stopped,      // on_token answered false
  length,       // max_tokens
  context,      // no room left
  cancelled,    // Engine::cancel
  deadline,     // the request's deadline passed
  interrupted,  // the server stops
  failed,       // see RequestSummary::error
};
std::string_view end_reason_text(EndReason reason);

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // raw log-softmax of the model
};

struct GeneratedToken {
  int32_t choice = 0;
  int32_t id = 0;
  int64_t index = 0;                                // of the choice's tokens, from 0
  float logprob = 0;                                // with logprobs
  const std::vector<TokenLogprob>* top = nullptr;  // with top_logprobs: exactly that many, most probable first
};

struct ChoiceEnd {
  int32_t choice = 0;
  EndReason reason = EndReason::stop_token;
  int64_t tokens = 0;  // generated, the stop token included
};

// Known at admission and never changed afterwards.
struct Admitted {
  int64_t prompt_tokens = 0, cached_tokens = 0, matched_tokens = 0;
  cache::HitLimit limit = cache::HitLimit::none;  // what kept cached_tokens from being more
  bool resumed_idle = false;                      // an idle sequence went on; no checkpoint was needed
  int64_t copied_bytes = 0, fetched_bytes = 0;
  double queue_seconds = 0;
};

struct RequestSummary {
  std::optional<Error> error;  // the request failed: no choice ended well
  Admitted admitted;
  int64_t computed_tokens = 0;  // prompt tokens really computed, recomputation after preemption included
  int64_t generated_tokens = 0;  // of all choices
  int64_t preemptions = 0;
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
};

struct RequestCallbacks {
  std::function<void(const Admitted&)> on_admitted;         // once, before any token
  std::function<bool(const GeneratedToken&)> on_token;      // false: the choice ends here (this token counts)
  std::function<void(const ChoiceEnd&)> on_choice_end;      // once a choice
  std::function<void(const RequestSummary&)> on_done;       // last
  // Logits of prompt tokens, when prompt_logprobs: position 1 .. n-1, logprob of the prompt's own token and the top ones.
  std::function<void(int64_t position, float logprob, const std::vector<TokenLogprob>& top)> on_prompt_token;
};

// What a simulation knows of a request in place of token ids. The answer has max_tokens, which must be given.
struct ModelledTokens {
  int64_t prompt_tokens = 0;
  int64_t arrived_tokens = 0;         // of the prompt: another engine has computed them, and they came with the request
  std::vector<cache::BlockKey> keys;  // of the complete blocks of the prompt and its answer
  int64_t session = -1;               // -1: none. An idle sequence of the same session begins the prompt ...
  int64_t continues_tokens = 0;       // ... when it is no longer than this
};

struct Request {
  std::string name;  // x-request-id, for logs
  std::vector<int32_t> prompt;
  std::shared_ptr<const ModelledTokens> modelled;  // null: `prompt` has the tokens
  std::vector<int64_t> turn_ends;  // positions in the prompt at which earlier turns end, ascending
  std::string cache_salt;          // and image hashes: extra keys of the prefix cache
  bool use_cache = true;
  std::optional<int32_t> slot;  // continue this idle slot when its tokens begin the prompt

  ops::SamplingParams sampling;  // each choice draws from its own stream of the seed
  int32_t choices = 1;
  int64_t max_tokens = 0;  // 0: all the room left
  int64_t min_tokens = 0;  // stop_ids are masked before, but where a grammar allows nothing else
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;
  int32_t logprobs = -1;  // -1: none; 0..20: entries of `top`
  bool prompt_logprobs = false;
  std::shared_ptr<const Grammar> grammar;  // null: free

  double deadline_seconds = 0;  // from submit; 0: the engine's
  int32_t priority = 0;         // slo-aware: higher goes first
  double ttft_target_seconds = 0;

  RequestCallbacks callbacks;
};

}  // namespace k3
