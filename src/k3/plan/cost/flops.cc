#include "k3/plan/cost/flops.h"

#include <cmath>

namespace k3::plan {

namespace {

double real(int64_t value) { return static_cast<double>(value); }

}  // namespace

LinearFlops linear_flops(const Counts& c) {
  const ModuleCounts& m = c.modules;
  LinearFlops f;
  f.kda = 2 * m.kda.flop_params;
  f.mla = 2 * m.mla.flop_params;
  f.routed = 2 * real(c.moe_layers * c.topk) * c.expert_params();
  f.shared = 2 * m.shared.flop_params;
  f.latent = 2 * m.latent.flop_params;
  f.router = 2 * m.router.flop_params;
  f.dense = 2 * m.dense.flop_params;
  f.head = 2 * m.head.flop_params;
  return f;
}

double kda_decode_flops(const Counts& c) { return real(c.kda_layers) * 7 * real(c.state_values()); }

double kda_prefill_flops_per_token(const Counts& c, double chunk) {
  const double dk = real(c.key_dim), dv = real(c.value_dim);
  const double of_a_head = 4 * chunk * dk + 4 * (std::log2(chunk) - 1) * chunk * chunk + 2 * chunk * (dk + dv) +
                           2 * chunk * dv + 6 * dk * dv + dk * dv / chunk;
  return real(c.kda_layers * c.kda_heads) * of_a_head;
}

double mla_prefill_flops(const Counts& c, double new_tokens, double past_tokens, bool expanded) {
  const double pairs = new_tokens * past_tokens + new_tokens * (new_tokens + 1) / 2;
  const double attention = 2 * real((c.nope_dim + c.rope_dim + c.mla_value_dim) * c.mla_heads) * pairs;
  const double expansion = 2 * real(c.latent_rank * c.mla_heads * (c.nope_dim + c.mla_value_dim)) * past_tokens;
  return real(c.mla_layers) * (attention + (expanded ? expansion : 0));
}

double mla_decode_flops(const Counts& c, double context_tokens) {
  return real(c.mla_layers * c.mla_heads) * 2 * context_tokens * real(2 * c.latent_rank + c.rope_dim);
}

// The last mix has 1 + ceil(L / A) sources. Layer l has 1 + floor(l / A) finished blocks before attention and before the FFN, a partial
// one before the FFN, and one before attention unless l begins a block, which ceil(L / A) layers do.
int64_t attn_res_sources(const Counts& c) {
  if (c.attn_res_block == 0) return 0;
  const int64_t whole = c.layers / c.attn_res_block, rest = c.layers % c.attn_res_block;
  const int64_t floors = c.attn_res_block * whole * (whole - 1) / 2 + rest * whole;  // sum of floor(l / A)
  return 1 + 4 * c.layers + 2 * floors;
}

double attn_res_flops(const Counts& c) { return 7 * real(c.hidden) * real(attn_res_sources(c)); }

double attn_res_bytes(const Counts& c, const Precision& precision) {
  if (c.attn_res_block == 0) return 0;
  return real((attn_res_sources(c) + 2 * c.layers + 1) * c.hidden) * precision.activation;
}

StepFlops decode_flops(const Counts& c, double context_tokens) {
  StepFlops f;
  f.linear = linear_flops(c).total();
  f.kda_core = kda_decode_flops(c);
  f.mla_core = mla_decode_flops(c, context_tokens);
  f.attn_res = attn_res_flops(c);
  return f;
}

StepFlops prefill_flops(const Counts& c, double new_tokens, double past_tokens) {
  StepFlops f;
  const LinearFlops linear = linear_flops(c);
  f.linear = linear.without_head() * new_tokens;
  f.head = linear.head;
  f.kda_core = kda_prefill_flops_per_token(c) * new_tokens;
  f.mla_core = mla_prefill_flops(c, new_tokens, past_tokens);
  f.attn_res = attn_res_flops(c) * new_tokens;
  return f;
}

double attention_equals_linear_tokens(const Counts& c) {
  // linear * S = a S (S + 1) / 2, a the FLOPs of a pair
  const double of_a_pair = mla_prefill_flops(c, 1, 0);
  return 2 * linear_flops(c).without_head() / of_a_pair - 1;
}

}  // namespace k3::plan
