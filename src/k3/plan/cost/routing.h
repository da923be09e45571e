// Purpose:  how many experts and ranks a batch of tokens touches.
// Shapes:   none.
// Units:    experts, ranks; expectations are not whole.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   none; inputs have passed validate.h. Without experts every answer is 0.
// Source:   cost-model.md 6.1-6.3.
#pragma once

#include <cstdint>

namespace k3::plan {

// Expected distinct experts that `tokens` tokens with independent, even choices touch.
double distinct_experts(int64_t experts, int64_t topk, double tokens);

// The same with Zipf popularity: expert i (from 1) is in a token's choice with min(1, c i^-exponent), which sums to topk.
double distinct_experts_zipf(int64_t experts, int64_t topk, double tokens, double exponent);

// Experts touched on the busiest of `ranks` ranks when `distinct` of all are: a normal tail, exactly distinct / ranks for
// one.
double busiest_rank_experts(int64_t experts, double distinct, int64_t ranks);

// Expected ranks that hold some of one token's experts. `ranks` may be groups of ranks (nodes).
double distinct_ranks(int64_t experts, int64_t topk, int64_t ranks);

}  // namespace k3::plan
