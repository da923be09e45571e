#include "k3/plan/cost/mechanisms.h"

#include <algorithm>

#include "k3/plan/cost/flops.h"
#include "k3/plan/cost/memory.h"

namespace k3::plan {

namespace {

double real(int64_t value) { return static_cast<double>(value); }

double causal_pairs(double tokens) { return tokens * (tokens + 1) / 2; }

// Pairs when a token sees at most `selected` before it, itself among them.
double selected_pairs(double tokens, double selected) {
  const double grown = std::min(tokens, selected);
  return causal_pairs(grown) + (tokens - grown) * selected;
}

MechanismCost full(const Counts& c, const Precision& p, double tokens) {
  const double heads = real(c.layers * c.mla_heads), dims = real(c.key_dim + c.value_dim);
  MechanismCost cost;
  cost.cache_bytes = cost.decode_bytes = heads * dims * p.cache * tokens;
  cost.decode_flops = 2 * heads * dims * tokens;
  cost.prefill_flops = 2 * heads * dims * causal_pairs(tokens);
  return cost;
}

// Layers of MLA alone, of the model's own dimensions.
Counts with_layers(const Counts& c, int64_t kda_layers, int64_t mla_layers) {
  Counts changed = c;
  changed.kda_layers = kda_layers;
  changed.mla_layers = mla_layers;
  return changed;
}

MechanismCost dsa(const Counts& all_mla, const Precision& p, double tokens, const Indexer& indexer) {
  const double layers = real(all_mla.layers), selected = std::min(tokens, indexer.selected_tokens);
  const double key_bytes = layers * (indexer.key_bytes + indexer.scale_bytes);
  const double scores = 2 * layers * indexer.heads * indexer.key_dim;
  MechanismCost cost;
  cost.cache_bytes = tokens * (cache_bytes_per_token(all_mla, p) + key_bytes);
  cost.decode_bytes = tokens * key_bytes + selected * cache_bytes_per_token(all_mla, p);
  cost.decode_flops = scores * tokens + mla_decode_flops(all_mla, selected);
  cost.prefill_flops =
      scores * causal_pairs(tokens) + mla_decode_flops(all_mla, selected_pairs(tokens, indexer.selected_tokens));
  return cost;
}

// KDA layers and MLA layers, whichever there are.
MechanismCost mixed(const Counts& c, const Precision& p, double tokens) {
  const double fixed = fixed_bytes(c, p), latents = tokens * cache_bytes_per_token(c, p);
  MechanismCost cost;
  cost.cache_bytes = fixed + latents;
  cost.decode_bytes = 2 * fixed + latents;
  cost.decode_flops = kda_decode_flops(c) + mla_decode_flops(c, tokens);
  cost.prefill_flops = kda_prefill_flops_per_token(c) * tokens + mla_prefill_flops(c, tokens, 0);
  return cost;
}

}  // namespace

const char* mechanism_name(Mechanism mechanism) {
  switch (mechanism) {
    case Mechanism::full: return "full";
    case Mechanism::mla: return "mla";
    case Mechanism::dsa: return "dsa";
    case Mechanism::kda: return "kda";
    case Mechanism::hybrid: return "hybrid";
  }
  return "";
}

MechanismCost mechanism_cost(const Counts& c, const Precision& p, Mechanism mechanism, double tokens,
                             const Indexer& indexer) {
  switch (mechanism) {
    case Mechanism::full: return full(c, p, tokens);
    case Mechanism::mla: return mixed(with_layers(c, 0, c.layers), p, tokens);
    case Mechanism::dsa: return dsa(with_layers(c, 0, c.layers), p, tokens, indexer);
    case Mechanism::kda: return mixed(with_layers(c, c.layers, 0), p, tokens);
    case Mechanism::hybrid: return mixed(c, p, tokens);
  }
  return {};
}

double hybrid_beats_mla_tokens(const Counts& c, const Precision& p) {
  const double token_bytes = real(c.cached_values()) * p.cache;
  return 2 * fixed_bytes(c, p) / (real(c.layers - c.mla_layers) * token_bytes);
}

}  // namespace k3::plan
