// Purpose:  what users see of a service: the closed loop of identical requests, and the balance of prefill and decode.
// Shapes:   none.
// Units:    seconds, tokens, tokens/s.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   none; validate(deployment) and validate(load) (validate.h) come before.
// Source:   cost-model.md 8.5, 8.6. All prompts are prefilled first, in batches of prefill_batch_tokens, then all decode
//           together; so the time per output token holds the wait for other prompts. Never compare it with a pure step. A
//           step is that of the mean length, input + output / 2.
#pragma once

#include "k3/plan/cost/decode.h"
#include "k3/plan/cost/deployment.h"

namespace k3::plan {

struct ClosedLoad {
  int64_t concurrency = 1;
  int64_t input_tokens = 8192, output_tokens = 1024;
  int64_t prefill_batch_tokens = 16384;
  int64_t draft_tokens = 0;
  double tokens_per_step = 1;  // accepted, with the draft
  SpeculationScheme scheme = SpeculationScheme::fused;
};

struct ClosedLoop {
  int64_t prefill_batches = 0;
  double prefill_batch_seconds = 0, step_seconds = 0;
  double ttft_seconds = 0, tpot_seconds = 0, total_seconds = 0;  // of the mean request, and of the round
  double output_tokens_per_second = 0;
  double tokens_per_second_per_gpu = 0;  // input and output
  double user_tokens_per_second = 0;     // 1 / TPOT; 0 when a request has one token
};
ClosedLoop closed_loop(const Deployment& deployment, const ClosedLoad& load);

// Prefill replicas that keep one decode replica busy.
double prefill_replicas_per_decode_replica(double decode_tokens_per_second, double output_tokens, double input_tokens,
                                           double prefill_tokens_per_second);

}  // namespace k3::plan
