// What a model that is read from disk while it runs has cost: the one place where `k3 bench` asks for it.
#pragma once

#include <cstdint>
#include <optional>

#include "k3/model/model.h"

namespace k3::cli {

struct StreamCounters {
  int64_t read_bytes = 0, hits = 0, misses = 0;  // experts that were wanted: in memory, or not
};

// Since the model was loaded. Nothing for a model that is in memory.
std::optional<StreamCounters> stream_counters(const Model& model);

// Bytes per second of its files past the page cache; 0 when that is not known.
double direct_read_rate(const Model& model);

// Of the repetitions of one test.
struct StreamFigures {
  double disk_bytes_per_token = 0, hit_rate = 0, disk_bytes_per_second = 0, direct_bytes_per_second = 0;
};
StreamFigures stream_figures(const StreamCounters& before, const StreamCounters& after, int64_t tokens, double seconds,
                             double direct_bytes_per_second);

}  // namespace k3::cli
