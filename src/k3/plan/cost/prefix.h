// Purpose:  what a cached prefix is worth: time saved, time to restore, space, and how often to keep a checkpoint.
// Shapes:   none.
// Units:    tokens, seconds, bytes.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   none; inputs have passed validate.h.
// Source:   cost-model.md 10.2-10.4, 13a. The break-even divides the restore by the cold time of a token of the whole
// prompt,
//           prefix and new ones. A restore from HBM copies one checkpoint of a rank (read and write); from the host or the
//           network it moves a checkpoint of a rank and all latents.
#pragma once

#include "k3/plan/cost/deployment.h"

namespace k3::plan {

enum class PrefixPlace { hbm, host, network };

struct PrefixBenefit {
  double cold_seconds = 0;  // prefill of all
  double warm_seconds = 0;  // of what no checkpoint covers
  double restore_seconds = 0;
  double saved_seconds = 0;      // cold - warm - restore
  double break_even_tokens = 0;  // shortest prefix that is worth its restore
};
// `gap_tokens`: from the checkpoint in use to the end of the matched prefix, computed again.
PrefixBenefit prefix_benefit(const Deployment& deployment, PrefixPlace place, int64_t prefix_tokens, int64_t new_tokens,
                             int64_t gap_tokens = 0);

// Bytes of so many checkpoints and of so many blocks of latents.
double checkpoints_bytes(const Counts& counts, const Precision& precision, double checkpoints);
double blocks_bytes(const Counts& counts, const Precision& precision, double blocks, double block_tokens = 512);

// Tokens between checkpoints that cost least in storage and expected recomputation. `price`: seconds of benefit that one
// stored byte must earn; `reuse`: probability that a checkpoint is used.
double best_checkpoint_interval_tokens(double checkpoint_bytes, double price_seconds_per_byte, double reuse,
                                       double prefill_seconds_per_token);

}  // namespace k3::plan
