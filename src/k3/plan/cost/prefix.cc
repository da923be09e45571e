#include "k3/plan/cost/prefix.h"

#include <cmath>

#include "k3/plan/cost/memory.h"
#include "k3/plan/cost/prefill.h"

namespace k3::plan {

namespace {

double prefill_seconds(const Deployment& d, int64_t new_tokens, int64_t past_tokens) {
  const PrefillSequence sequence{new_tokens, past_tokens};
  return prefill_time(d, {{&sequence, 1}, 1}).seconds;
}

double restore_seconds(const Deployment& d, PrefixPlace place, int64_t hit_tokens) {
  const double state = fixed_bytes(d.counts, d.precision) / static_cast<double>(d.layout.tp);
  const double latents = static_cast<double>(hit_tokens) * cache_bytes_per_token(d.counts, d.precision);
  switch (place) {
    case PrefixPlace::hbm: return 2 * state / (d.hardware.hbm_bytes_per_second * d.efficiency.state_bytes);
    case PrefixPlace::host: return (state + latents) / (d.hardware.host_bytes_per_second * d.efficiency.link);
    case PrefixPlace::network: return (state + latents) / (d.hardware.network_bytes_per_second * d.efficiency.link);
  }
  return 0;
}

}  // namespace

PrefixBenefit prefix_benefit(const Deployment& d, PrefixPlace place, int64_t prefix_tokens, int64_t new_tokens,
                             int64_t gap_tokens) {
  PrefixBenefit b;
  b.cold_seconds = prefill_seconds(d, prefix_tokens + new_tokens, 0);
  b.warm_seconds = prefill_seconds(d, new_tokens + gap_tokens, prefix_tokens - gap_tokens);
  b.restore_seconds = restore_seconds(d, place, prefix_tokens - gap_tokens);
  b.saved_seconds = b.cold_seconds - b.warm_seconds - b.restore_seconds;
  b.break_even_tokens = b.restore_seconds / (b.cold_seconds / static_cast<double>(prefix_tokens + new_tokens));
  return b;
}

double checkpoints_bytes(const Counts& counts, const Precision& precision, double checkpoints) {
  return checkpoints * fixed_bytes(counts, precision);
}

double blocks_bytes(const Counts& counts, const Precision& precision, double blocks, double block_tokens) {
  return blocks * block_tokens * cache_bytes_per_token(counts, precision);
}

double best_checkpoint_interval_tokens(double checkpoint_bytes, double price, double reuse,
                                       double prefill_seconds_per_token) {
  return std::sqrt(2 * checkpoint_bytes * price / (reuse * prefill_seconds_per_token));
}

}  // namespace k3::plan
