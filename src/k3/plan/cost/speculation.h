// Purpose:  what a draft of gamma tokens brings and costs: tokens for each step, state traffic, break-even acceptance.
// Shapes:   none.
// Units:    tokens for each step (1 without a draft), bytes, tokens.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   none; inputs have passed validate.h.
// Source:   cost-model.md 9. State traffic in units of the recurrent state, g = gamma + 1 (found from the golden values):
//           snapshot reads 1, writes g copies, then reads and writes the accepted one: g + 3; replay reads 1 to verify,
//           reads and writes 1 to fold, and the raw inputs go out and in; fused replay saves the separate verify read.
//           The convolution windows are in the time of a step, not in these bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "k3/plan/cost/deployment.h"

namespace k3::plan {

enum class SpeculationScheme {
  none,      // one token a step
  snapshot,  // a state is kept behind each verified token
  replay,    // inputs are kept; the accepted ones are folded in afterwards
  fused,     // folding, the bonus token and the next window in one pass
};

struct StateTraffic {
  double traffic_bytes = 0;  // of one request and step, all KDA layers
  double scratch_bytes = 0;  // held for each running request
};
StateTraffic speculation_state_traffic(const Counts& counts, const Precision& precision, SpeculationScheme scheme,
                                       int64_t draft_tokens);

// 1 + sum over i <= gamma of alpha^i.
double tokens_per_step(double alpha, int64_t draft_tokens);
// The alpha that gives so many tokens a step: 0 for one or fewer, 1 for gamma + 1 or more.
double fit_alpha(int64_t draft_tokens, double tokens_per_step);

// Acceptance falls from a length on: the accepted draft tokens are multiplied by 1 up to `from`, by `share` beyond `to`,
// linearly in the logarithm of the length between them.
struct ContextDecay {
  double from_tokens = std::numeric_limits<double>::infinity();
  double to_tokens = std::numeric_limits<double>::infinity();
  double share = 1;

  double factor(double context_tokens) const;
};

struct AcceptanceCurve {
  std::string name;
  std::vector<double> tokens_per_step;  // for drafts of 1, 2, ... tokens
  ContextDecay decay;

  // Drafts longer than the curve gain nothing more.
  double at(int64_t draft_tokens, double context_tokens = 0) const;
};
AcceptanceCurve constant_acceptance(std::string name, double alpha, int64_t most_draft_tokens);
// The published ones: DSpark on code (plain and block rejection) by length; chat, few-shot math, low entropy and creative
// text as the constant alpha of their value at 7 draft tokens.
const std::vector<AcceptanceCurve>& published_acceptance();

// What acceptance must be for a speculating step to be no slower than plain ones.
struct BreakEven {
  double tokens_per_step = 0;   // speculating step / plain step
  std::optional<double> alpha;  // empty: even full acceptance is too little
};
BreakEven break_even(double plain_step_seconds, double speculating_step_seconds, int64_t draft_tokens);

}  // namespace k3::plan
