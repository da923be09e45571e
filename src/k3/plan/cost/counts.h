// Purpose:  the numbers of a model that the cost formulas stand on: dimensions, parameters and bytes by module.
// Shapes:   none.
// Units:    parameters are logical weights; bytes as held in memory; FLOPs count a multiply-add as two.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   table_counts, idealised_counts: as check_sizes (model/summary.h); none for a config that passed it.
// Source:   cost-model.md 3. Two counts exist. table_counts (the planner's default) sums the parameter table
//           (model/params.h): every tensor in its own dtype, matrices alone in FLOPs. idealised_counts is section 3 as it
//           stands, which the golden values use: all parameters of a module count in its FLOPs, BF16 for whatever is
//           not a routed expert, vision rounded to 401e6 parameters, no projector.
#pragma once

#include <array>
#include <cstdint>

#include "k3/base/result.h"
#include "k3/format/config.h"
#include "k3/plan/cost/precision.h"

namespace k3::plan {

struct ModuleCount {
  double params = 0;
  double bytes = 0;
  double flop_params = 0;  // parameters that a token multiplies, all experts counted; FLOPs are twice that
};

struct NamedModule {
  const char* name;
  ModuleCount count;
};

// Sums over all layers.
struct ModuleCounts {
  ModuleCount kda, mla, routed, shared, latent, router, dense, embedding, head, norms, attn_res, vision;

  std::array<NamedModule, 12> named() const;  // in this order, for tables that people read
  double total_params() const;
  double total_bytes() const;
};

// Parts of the modules that every rank of an attention group holds whole, in bytes over all layers.
struct ReplicatedBytes {
  double kda = 0;          // f_a, beta; the table adds a low-rank gate's g_a and vectors without a head
  double mla = 0;          // q_a, kv_a; the table adds their norms
  double latent_down = 0;  // the rest of `latent` is the up projection with the norm
  double vectors = 0;      // norms and AttnRes; none in the idealised count (13a)
};

struct Counts {
  int64_t layers = 0, kda_layers = 0, mla_layers = 0, moe_layers = 0, dense_layers = 0;
  int64_t hidden = 0, vocabulary = 0;
  int64_t kda_heads = 0, key_dim = 0, value_dim = 0, conv_taps = 0;  // of KDA
  int64_t mla_heads = 0, query_rank = 0, latent_rank = 0, nope_dim = 0, rope_dim = 0, mla_value_dim = 0;
  int64_t experts = 0, topk = 0, expert_hidden = 0, expert_width = 0;  // expert_width: the l of the spec, latent or H
  int64_t attn_res_block = 0;                                          // 0: ordinary residual
  ModuleCounts modules;
  ReplicatedBytes replicated;
  double query_up_bytes = 0;   // q_b, or q_proj of a direct query: decode context parallelism reads more of it
  double head_read_bytes = 0;  // what a row of logits reads: the head, or the embedding it is tied to

  int64_t cached_values() const { return latent_rank + rope_dim; }          // of a token in one MLA layer
  int64_t state_values() const { return kda_heads * key_dim * value_dim; }  // of one KDA layer
  int64_t conv_values() const { return conv_taps < 2 ? 0 : (conv_taps - 1) * kda_heads * (2 * key_dim + value_dim); }
  double expert_bytes() const;  // of one routed expert
  double expert_params() const;
  double active_params() const;  // read for a decoded token: head yes, embedding and vision no
};

Result<Counts> table_counts(const Config& config);
Result<Counts> idealised_counts(const Config& config, const Precision& precision = {});

}  // namespace k3::plan
