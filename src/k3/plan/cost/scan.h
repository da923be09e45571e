// Purpose:  time of one KDA layer's prefill scan, which one long sequence makes serial.
// Shapes:   none.
// Units:    tokens, seconds.
// Memory:   plain values.
// Threads:  pure function.
// Errors:   none; inputs have passed validate.h. No sequences cost nothing.
// Source:   cost-model.md 8.3: kappa heads sum(T) + tau max(longest, heads sum(chains) / lanes + longest - mean chain), a
// chain
//           being ceil(T / 16) chunks. Within 3 % of the public FlashKDA table (0.86-1.01 ms at 64 and 96 heads).
#pragma once

#include <span>

#include "k3/plan/hardware/hardware.h"

namespace k3::plan {

// Sums over the sequences of a batch: all that its time depends on.
struct ScanBatch {
  double sequences = 0, tokens = 0, chains = 0, longest = 0;  // longest: chain

  void add(const Efficiency& efficiency, double sequence_tokens, double count);
};
double kda_batch_scan_seconds(const Hardware& hardware, double heads, const ScanBatch& batch);

double kda_scan_seconds(const Hardware& hardware, const Efficiency& efficiency, double heads,
                        std::span<const double> tokens);

}  // namespace k3::plan
