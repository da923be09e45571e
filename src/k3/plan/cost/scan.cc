#include "k3/plan/cost/scan.h"

#include <algorithm>
#include <cmath>

namespace k3::plan {

void ScanBatch::add(const Efficiency& e, double sequence_tokens, double count) {
  const double chain = std::ceil(sequence_tokens / e.scan_chunk_tokens);
  sequences += count;
  tokens += sequence_tokens * count;
  chains += chain * count;
  longest = std::max(longest, chain);
}

double kda_batch_scan_seconds(const Hardware& hw, double heads, const ScanBatch& b) {
  if (b.sequences <= 0) return 0;
  const double serial = std::max(b.longest, heads * b.chains / hw.scan_lanes + (b.longest - b.chains / b.sequences));
  return hw.scan_head_token_seconds * heads * b.tokens + hw.scan_chunk_seconds * serial;
}

double kda_scan_seconds(const Hardware& hw, const Efficiency& e, double heads, std::span<const double> tokens) {
  ScanBatch batch;
  for (const double t : tokens) batch.add(e, t, 1);
  return kda_batch_scan_seconds(hw, heads, batch);
}

}  // namespace k3::plan
