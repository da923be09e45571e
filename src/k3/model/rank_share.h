// Purpose:  the config of what one rank of several holds and computes, as a model of its own without collectives, for benches.
// Shapes:   tensor parallel: heads of KDA and MLA, width of the dense MLP and of the shared experts are divided by tp. Expert
//           parallel: experts [rank % ep * E / ep, + E / ep); the router stays over all E and routes to others are dropped.
//           Whole on every rank: hidden width, latents and their projections, router, embedding and lm_head (a rank of a real
//           service has 1 / tp of the vocabulary: the line of the head says what it costs whole).
// Units:    ranks.
// Memory:   none.
// Threads:  pure function.
// Errors:   invalid_argument naming the field that cannot be divided, or a rank outside.
// Source:   kernels.md 7 (per GPU shapes), serving: TP attention with EP experts.
#pragma once

#include "k3/format/config.h"

namespace k3 {

struct RankShare {
  int64_t tp = 1, ep = 1, rank = 0;
  bool whole() const { return tp == 1 && ep == 1; }
};

Result<Config> rank_config(const Config& whole, const RankShare& share);

}  // namespace k3
