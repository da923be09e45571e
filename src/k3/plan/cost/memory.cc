#include "k3/plan/cost/memory.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace k3::plan {

namespace {

double real(int64_t value) { return static_cast<double>(value); }

double conv_layer_bytes(const Counts& counts, const Precision& precision) {
  return real(counts.conv_values()) * precision.conv;
}

}  // namespace

double recurrent_bytes(const Counts& counts, const Precision& precision) {
  return real(counts.kda_layers) * real(counts.state_values()) * precision.state;
}

double conv_bytes(const Counts& counts, const Precision& precision) {
  return real(counts.kda_layers) * conv_layer_bytes(counts, precision);
}

double fixed_bytes(const Counts& counts, const Precision& precision) {
  return recurrent_bytes(counts, precision) + conv_bytes(counts, precision);
}

double cache_bytes_per_token(const Counts& counts, const Precision& precision) {
  return real(counts.mla_layers * counts.cached_values()) * precision.cache;
}

double history_bytes(const Counts& counts, const Precision& precision, double tokens, double checkpoints,
                     double other_bytes) {
  return (1 + checkpoints) * fixed_bytes(counts, precision) + tokens * cache_bytes_per_token(counts, precision) +
         other_bytes;
}

double equal_cost_tokens(const Counts& counts, const Precision& precision) {
  return fixed_bytes(counts, precision) / cache_bytes_per_token(counts, precision);
}

double attn_res_in_flight_bytes(const Counts& counts, const Precision& precision) {
  if (counts.attn_res_block == 0) return real(counts.hidden) * precision.activation;
  const int64_t sources = 1 + (counts.layers + counts.attn_res_block - 1) / counts.attn_res_block;
  return real(sources * counts.hidden) * precision.activation;
}

double ResidentWeights::total() const {
  return kda + mla + router + latent + shared + routed + dense + embedding + head + vision + vectors;
}

ResidentWeights resident_weights(const Counts& counts, const Layout& layout) {
  const ModuleCounts& m = counts.modules;
  const double tp = real(layout.tp), pp = real(layout.pp);
  const auto split = [&](double all, double whole) { return ((all - whole) / tp + whole) / pp; };
  ResidentWeights w;
  w.kda = split(m.kda.bytes, counts.replicated.kda);
  w.mla = split(m.mla.bytes, counts.replicated.mla);
  w.router = split(m.router.bytes, m.router.bytes);
  w.latent =
      layout.up_sharded ? split(m.latent.bytes, counts.replicated.latent_down) : split(m.latent.bytes, m.latent.bytes);
  w.shared = split(m.shared.bytes, 0);
  w.routed = m.routed.bytes / real(layout.stage_ranks()) / pp;
  w.dense = split(m.dense.bytes, 0);
  w.embedding = split(m.embedding.bytes, 0);
  w.head = split(m.head.bytes, 0);
  w.vision = m.vision.bytes / tp;
  w.vectors = counts.replicated.vectors / pp;
  return w;
}

Capacity capacity(const Deployment& d, double context_tokens, double slots) {
  const double tp = real(d.layout.tp), pp = real(d.layout.pp), dcp = real(d.layout.dcp);
  const double token_bytes = cache_bytes_per_token(d.counts, d.precision) / (pp * dcp);
  Capacity c;
  c.memory_bytes = d.hardware.memory_bytes;
  c.reserved_bytes = d.hardware.memory_bytes * d.efficiency.memory_reserve;
  c.extra_bytes = d.efficiency.extra_bytes;
  c.weights_bytes = resident_weights(d.counts, d.layout).total();
  c.free_bytes = c.memory_bytes - c.reserved_bytes - c.weights_bytes - c.extra_bytes;
  c.state_bytes = slots * fixed_bytes(d.counts, d.precision) / (tp * pp);
  c.cache_bytes = context_tokens * token_bytes;
  c.per_request_bytes = c.state_bytes + c.cache_bytes;
  c.fits = c.free_bytes > 0;
  if (!c.fits) return c;
  c.tokens_if_one = std::max(0.0, (c.free_bytes - c.state_bytes) / token_bytes);
  const double most = real(std::numeric_limits<int32_t>::max());  // requests of nothing would be endless
  const double each = c.per_request_bytes > 0 ? std::floor(c.free_bytes / c.per_request_bytes) : most;
  c.requests = static_cast<int64_t>(std::min(each, most)) * d.layout.dp;
  return c;
}

int64_t unified_page_tokens(const Counts& counts, const Precision& precision, int64_t tp, int64_t block_tokens) {
  const double layer_bytes =
      (real(counts.state_values()) * precision.state + conv_layer_bytes(counts, precision)) / real(tp);
  const double block_bytes = real(block_tokens * counts.cached_values()) * precision.cache;
  return block_tokens * std::max<int64_t>(1, static_cast<int64_t>(std::ceil(layer_bytes / block_bytes)));
}

double dual_pool_ratio(const Counts& counts, const Precision& precision, const Layout& layout, double mean_tokens,
                       double slots, double draft_copies, double draft_cache_bytes_per_token) {
  const double state = (slots + draft_copies) * fixed_bytes(counts, precision) / real(layout.tp);
  return state / (mean_tokens * (cache_bytes_per_token(counts, precision) / real(layout.dcp) + draft_cache_bytes_per_token));
}

}  // namespace k3::plan
