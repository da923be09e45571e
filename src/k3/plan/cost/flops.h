// Purpose:  FLOPs of a token and of a prompt, by module, and the traffic of AttnRes.
// Shapes:   none.
// Units:    FLOPs (a multiply-add is two), bytes, tokens.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   none; inputs have passed validate.h.
// Source:   cost-model.md 5. Causal pairs of N new tokens after P cached: N P + N (N + 1) / 2. The idealised count takes all
//           parameters of a module for matrices, as the golden values do; the table's takes matrices alone (0.1 % less).
#pragma once

#include <cstdint>

#include "k3/plan/cost/counts.h"

namespace k3::plan {

// Of one token through all layers.
struct LinearFlops {
  double kda = 0, mla = 0, routed = 0, shared = 0, latent = 0, router = 0, dense = 0, head = 0;

  double without_head() const { return kda + mla + routed + shared + latent + router + dense; }
  double total() const { return without_head() + head; }
};
LinearFlops linear_flops(const Counts& counts);

double kda_decode_flops(const Counts& counts);  // of one token
double kda_prefill_flops_per_token(const Counts& counts, double chunk_tokens = 16);

// `expanded`: cached latents are expanded to heads once more, as unabsorbed kernels do.
double mla_prefill_flops(const Counts& counts, double new_tokens, double past_tokens, bool expanded = true);
double mla_decode_flops(const Counts& counts, double context_tokens);  // absorbed, of one token

// Source blocks that all mixes of one token read: before attention and before the FFN of every layer, and the last mix.
int64_t attn_res_sources(const Counts& counts);
double attn_res_flops(const Counts& counts);
double attn_res_bytes(const Counts& counts, const Precision& precision);  // sources read and results written, of one token

struct StepFlops {
  double linear = 0, head = 0, kda_core = 0, mla_core = 0, attn_res = 0;  // a decode step's linear holds the head

  double total() const { return linear + head + kda_core + mla_core + attn_res; }
};
StepFlops decode_flops(const Counts& counts, double context_tokens);                       // of one token
StepFlops prefill_flops(const Counts& counts, double new_tokens, double past_tokens = 0);  // of a prompt, one row of logits

// Context at which causal attention over a prompt costs as much as its matrices.
double attention_equals_linear_tokens(const Counts& counts);

}  // namespace k3::plan
