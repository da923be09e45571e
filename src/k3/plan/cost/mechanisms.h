// Purpose:  attention mechanisms compared on one model's shape, as functions of length.
// Shapes:   all layers of the model carry the mechanism, but for the hybrid, which keeps the model's own mix.
// Units:    bytes, FLOPs, tokens. Projections are left out.
// Memory:   plain values.
// Threads:  pure function.
// Errors:   none; inputs have passed validate.h.
// Source:   cost-model.md 11 (BF16 cache and state there). full: keys and values of all heads of key_dim; MLA: absorbed at
//           decode, expanded at prefill; DSA: an FP8 indexer key of 128 with a 4-byte scale beside each latent, 64 indexer
//           heads over the whole prefix, then absorbed attention over at most 2048 tokens, at prefill too; KDA: two passes
//           over states and windows for each token.
#pragma once

#include <array>

#include "k3/plan/cost/counts.h"

namespace k3::plan {

enum class Mechanism { full, mla, dsa, kda, hybrid };
inline constexpr std::array<Mechanism, 5> kMechanisms = {Mechanism::full, Mechanism::mla, Mechanism::dsa, Mechanism::kda,
                                                         Mechanism::hybrid};
const char* mechanism_name(Mechanism mechanism);

struct Indexer {
  double heads = 64, key_dim = 128, selected_tokens = 2048;
  double key_bytes = 128, scale_bytes = 4;  // of a token in one layer
};

struct MechanismCost {
  double cache_bytes = 0;    // of a sequence
  double decode_bytes = 0;   // read and written for one token
  double decode_flops = 0;   // of one token
  double prefill_flops = 0;  // attention of the whole prompt
};
MechanismCost mechanism_cost(const Counts& counts, const Precision& precision, Mechanism mechanism, double tokens,
                             const Indexer& indexer = {});

// Length from which the hybrid's decode reads less than MLA in all layers would.
double hybrid_beats_mla_tokens(const Counts& counts, const Precision& precision);

}  // namespace k3::plan
