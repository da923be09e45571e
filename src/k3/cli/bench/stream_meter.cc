#include "k3/cli/bench/stream_meter.h"

#include <algorithm>

#include "k3/base/disk_rate.h"
#include "k3/base/file.h"

namespace k3::cli {

std::optional<StreamCounters> stream_counters(const Model& model) {
  const auto stats = model.stream_stats();
  if (!stats) return std::nullopt;
  return StreamCounters{stats->read_bytes, stats->expert_hits, stats->expert_misses};
}

double direct_read_rate(const Model& model) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(model.folder());
  if (!checkpoint.ok() || !model.plan()) return 0;
  // The largest file, by ranges of the size of an expert: what the model itself asks for.
  std::string largest;
  int64_t largest_bytes = 0;
  for (int32_t s = 0; s < checkpoint->shard_count(); ++s) {
    const std::string path = join_path(checkpoint->folder(), checkpoint->shard_file(s));
    const Result<File> file = File::open(path);
    if (!file.ok() || file->size_bytes() <= largest_bytes) continue;
    largest = path;
    largest_bytes = file->size_bytes();
  }
  const auto rate = measure_disk_read(largest, std::max<int64_t>(model.plan()->expert_slot_bytes, 1 << 20));
  return rate.ok() ? std::max(rate->sequential_bytes_per_second, rate->random_bytes_per_second) : 0;
}

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
