#include "k3/plan/cost/scan.h"

#include <algorithm>
#include <cmath>

namespace k3::plan {

double kda_scan_seconds(const Hardware& hw, const Efficiency& e, double heads, std::span<const double> tokens) {
  if (tokens.empty()) return 0;
  double sum_tokens = 0, chains = 0, longest = 0;
  for (const double t : tokens) {
    const double chain = std::ceil(t / e.scan_chunk_tokens);
    sum_tokens += t;
    chains += chain;
    longest = std::max(longest, chain);
  }
  const double mean = chains / static_cast<double>(tokens.size());
  const double serial = std::max(longest, heads * chains / hw.scan_lanes + (longest - mean));
  return hw.scan_head_token_seconds * heads * sum_tokens + hw.scan_chunk_seconds * serial;
}

}  // namespace k3::plan
