// Purpose:  what a scenario gives: for each layout whether it fits, how many users, at what latency and price; the best of
//           all; the frontier of throughput against user speed.
// Shapes:   none.
// Units:    seconds, tokens; tokens/s; rates "_gpu" are for one accelerator; cost in the unit of Scenario::gpu_hour.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   as layouts_of.
// Source:   cost-model.md 7.2, 8.5. Closed loop: all users send at once; prompts in batches, then all decode. The users of
//           batch i of n wait i batches, so that percentiles over users follow from the batches; the median is the
//           specification's TTFT and TPOT.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "k3/plan/advise/scenario.h"
#include "k3/plan/cost/decode.h"
#include "k3/plan/cost/memory.h"
#include "k3/plan/cost/prefill.h"

namespace k3::plan {

struct UserPoint {
  int64_t users = 0;
  double ttft_p50 = 0, ttft_p95 = 0, tpot_p50 = 0, tpot_p95 = 0;
  double step_seconds = 0;           // a decode step, without waiting for prompts
  double total_seconds = 0;          // of the whole loop
  double prefill_share = 0;          // of it
  double output_per_second = 0;      // all users
  double tokens_per_second_gpu = 0;  // input (reused ones too) and output
  double output_per_second_gpu = 0;
  double cost_per_million = 0, cost_per_million_output = 0;  // 0 without a price
  bool meets = false;                                        // the objective

  double user_tokens_per_second() const { return tpot_p50 > 0 ? 1 / tpot_p50 : 0; }
  double gpu_hours_per_million() const { return 1e6 / 3600 / tokens_per_second_gpu; }
  double gpu_hours_per_million_output() const { return 1e6 / 3600 / output_per_second_gpu; }
};

struct LayoutAnswer {
  Layout layout;
  Capacity capacity;               // at the length of a whole request
  std::vector<UserPoint> ladder;   // rising users; empty when it does not fit
  std::optional<UserPoint> point;  // with Load::users, or with the most users that meet the objective (else one user)
};

// `users` at most what fits; a deployment that fits none has no points.
UserPoint point_of(const Scenario& scenario, const Layout& layout, int64_t users);
DecodeStep decode_of(const Scenario& scenario, const Layout& layout, int64_t users);
// The batch of prompts that point_of() counts with, and its sequences.
int64_t prefill_batch_requests(const Scenario& scenario, const Layout& layout, int64_t users);
PrefillTime prefill_of(const Scenario& scenario, const Layout& layout, int64_t requests);

LayoutAnswer answer_layout(const Scenario& scenario, const Layout& layout);

struct Answer {
  std::vector<LayoutAnswer> layouts;  // all that were tried
  std::optional<size_t> best;         // empty: none fits
};
Result<Answer> answer(const Scenario& scenario);

// True when `a` is to be preferred: it has room for the users asked for; its point meets the objective, or misses it by
// less; more tokens/s.
bool better(const LayoutAnswer& a, const LayoutAnswer& b, const Objective& objective);

// Points of all layouts that no other beats in both throughput per GPU and user speed, fastest user first; of those alone
// that meet the objective, when asked so.
struct FrontierPoint {
  Layout layout;
  UserPoint point;
};
std::vector<FrontierPoint> frontier(const Answer& answer, bool meeting = false);

}  // namespace k3::plan
