#include "k3/cli/bench/stream_meter.h"

namespace k3::cli {

std::optional<StreamCounters> stream_counters(const Model& /*model*/) { return std::nullopt; }

double direct_read_rate(const Model& /*model*/) { return 0; }

StreamFigures stream_figures(const StreamCounters& before, const StreamCounters& after, int64_t tokens, double seconds,
                             double direct_bytes_per_second) {
  const auto bytes = static_cast<double>(after.read_bytes - before.read_bytes);
  const auto hits = static_cast<double>(after.hits - before.hits),
             misses = static_cast<double>(after.misses - before.misses);
  StreamFigures f;
  f.disk_bytes_per_token = tokens > 0 ? bytes / static_cast<double>(tokens) : 0;
  f.hit_rate = hits + misses > 0 ? hits / (hits + misses) : 1;
  f.disk_bytes_per_second = seconds > 0 ? bytes / seconds : 0;
  f.direct_bytes_per_second = direct_bytes_per_second;
  return f;
}

}  // namespace k3::cli
