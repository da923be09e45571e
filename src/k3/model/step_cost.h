// Purpose:  what a decode step or a prompt must read and compute, and the time that a machine needs for it at best.
// Shapes:   none.
// Units:    bytes, FLOPs (a multiply-add is two), seconds. Doubles: expectations are not whole.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   none; counts are not negative (K3_CHECK).
// Source:   cost model: distinct experts D(B) = E (1 - (1 - k/E)^B) for B tokens that choose independently; KDA core of a
//           prompt in chunks of 16; causal pairs N P + N (N + 1) / 2. Left out, so that a floor stays one: activations,
//           norms, AttnRes, embedding rows, and what a kernel computes twice.
#pragma once

#include <cstdint>
#include <optional>

#include "k3/format/config.h"
#include "k3/model/summary.h"

namespace k3 {

// Expected number of experts that some of `tokens` tokens choose.
double distinct_experts(int64_t experts, int64_t topk, int64_t tokens);

// Sizes of one model under one policy.
struct CostModel {
  double trunk_bytes = 0;   // read in every step: all but experts, lm_head and the embedding table
  double head_bytes = 0;    // lm_head
  double expert_bytes = 0;  // one expert in all layers
  int64_t experts = 0, topk = 0;
  double state_bytes = 0;          // KDA state and conv tail of a sequence: read and written in every step
  double latent_bytes = 0;         // of a cached token, all MLA layers
  double trunk_flops = 0;          // matrices a token passes, without lm_head
  double head_flops = 0;           // a row of logits
  double recurrence_flops = 0;     // KDA, step form
  double chunk_flops = 0;          // KDA, chunk form
  double absorbed_pair_flops = 0;  // MLA, a query and a cached token
  double expanded_pair_flops = 0;
};

// `summary` from summarise, with stored sizes where a checkpoint is there; cache_element_bytes: 2 in bf16, 4 in exact.
CostModel cost_model(const Config& config, const ModelSummary& summary, int64_t cache_element_bytes);

struct StepCost {
  double weight_bytes = 0;  // trunk, lm_head, experts
  double cache_bytes = 0;   // state, conv tail and latents
  double matrix_flops = 0;
  double attention_flops = 0;   // grows with the length
  double recurrence_flops = 0;  // KDA

  double bytes() const { return weight_bytes + cache_bytes; }
  double flops() const { return matrix_flops + attention_flops + recurrence_flops; }
};

// `touched`, here and below: experts that a layer's tokens really chose in one step, in the mean, of all that it has (a rank with a
// share of them: times the ranks); without it as expected.
// `steps` steps of one token for each of `batch` sequences that have `history` tokens in the cache before the first.
StepCost decode_cost(const CostModel& model, int64_t batch, int64_t history, int64_t steps, std::optional<double> touched = {});

// Prompts of `tokens` tokens for each of `batch` sequences with `history` tokens in the cache, in forwards of at most
// `chunk_tokens` tokens over all sequences; logits of the last token of each.
StepCost prefill_cost(const CostModel& model, int64_t batch, int64_t history, int64_t tokens, int64_t chunk_tokens,
                      std::optional<double> touched = {});

struct Floor {
  double seconds = 0;
  bool by_reading = false;  // else by computing
};

// No machine that reads and computes at these rates is faster, however well the two overlap.
Floor floor_of(const StepCost& cost, double read_bytes_per_second, double flops_per_second);

}  // namespace k3
