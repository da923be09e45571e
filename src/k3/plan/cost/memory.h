// Purpose:  what a request leaves behind, what an accelerator must hold, and how many requests fit beside it.
// Shapes:   none.
// Units:    bytes, tokens, requests.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   none; inputs have passed validate.h. A model that does not fit has negative free bytes and no requests.
// Source:   cost-model.md 3.2, 4, 7, 13a. Readings that the golden values need: the vision part is split over tp and not
//           over pp; the RMSNorm of the latent goes with the up projection, the norms of MLA's ranks go with what is
//           split; embedding and head are those of the mean stage (/tp/pp).
#pragma once

#include <cstdint>

#include "k3/plan/cost/deployment.h"

namespace k3::plan {

// A request's fixed history over all layers.
double recurrent_bytes(const Counts& counts, const Precision& precision);
double conv_bytes(const Counts& counts, const Precision& precision);
double fixed_bytes(const Counts& counts, const Precision& precision);  // M_fix, also the size of a checkpoint

// The growing one, of a token over all MLA layers.
double cache_bytes_per_token(const Counts& counts, const Precision& precision);

// M_history of a request with `checkpoints` further copies of its states.
double history_bytes(const Counts& counts, const Precision& precision, double tokens, double checkpoints = 0,
                     double other_bytes = 0);

// S*: tokens of latents that cost as much as one checkpoint.
double equal_cost_tokens(const Counts& counts, const Precision& precision);

// Bytes in flight of one token's AttnRes sources.
double attn_res_in_flight_bytes(const Counts& counts, const Precision& precision);

// Weights of one accelerator, of the mean stage.
struct ResidentWeights {
  double kda = 0, mla = 0, router = 0, latent = 0, shared = 0, routed = 0, dense = 0, embedding = 0, head = 0, vision = 0,
         vectors = 0;

  double moe_dense() const { return router + latent + shared; }  // what of an MoE layer every token passes
  double total() const;
};
ResidentWeights resident_weights(const Counts& counts, const Layout& layout);

// State slots that a running request takes.
inline constexpr double kSlotsDoubleBuffered = 5;  // double-buffered checkpointing
inline constexpr double kSlotsLazy = 4;
inline constexpr double kSlotsUnbuffered = 3;
inline constexpr double kSlotsWithoutPrefixCache = 1;  // also the decode side of P/D

struct Capacity {
  double memory_bytes = 0, reserved_bytes = 0, extra_bytes = 0;  // extra: workspaces
  double weights_bytes = 0;
  double free_bytes = 0;         // memory - reserved - extra - weights; negative: does not fit
  double state_bytes = 0;        // of a request on one accelerator: its slots
  double cache_bytes = 0;        // and its latents
  double per_request_bytes = 0;  // both
  double tokens_if_one = 0;      // longest context of a request that is alone in its attention group
  int64_t requests = 0;          // in all attention groups
  bool fits = false;
};
Capacity capacity(const Deployment& deployment, double context_tokens, double slots = kSlotsWithoutPrefixCache);

// Tokens of a unified page, a multiple of block_tokens, for one of tp ranks. The same as cache::make_shape, which knows
// whole bytes only.
int64_t unified_page_tokens(const Counts& counts, const Precision& precision, int64_t tp, int64_t block_tokens = 512);

// State bytes for each byte of latents that keeps two static pools full together.
double dual_pool_ratio(const Counts& counts, const Precision& precision, const Layout& layout, double mean_tokens,
                       double slots, double draft_copies = 0, double draft_cache_bytes_per_token = 0);

}  // namespace k3::plan
