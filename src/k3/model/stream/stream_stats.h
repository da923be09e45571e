// Purpose:  what running a model from disk has cost so far, for bench and notes.
// Shapes:   none.
// Units:    bytes, seconds; counts of experts, one for every layer and step that wants one.
// Memory:   plain values.
// Threads:  a copy; taken between steps.
// Errors:   none.
// Source:   -
#pragma once

#include <cstdint>

namespace k3 {

struct StreamStats {
  int64_t steps = 0, tokens = 0;
  int64_t read_bytes = 0;         // from disk, whole blocks
  int64_t expert_hits = 0;        // in the cache when wanted
  int64_t expert_misses = 0;      // read because wanted
  int64_t prefetched = 0;         // read ahead on a prediction
  int64_t prefetch_hits = 0;      // of those, wanted at the next use of their layer; counted as hits too
  int64_t predicted = 0;          // experts that a prediction named
  int64_t predicted_right = 0;    // of those, wanted
  double expert_wait_seconds = 0;  // the step stood still for experts
  double trunk_wait_seconds = 0;   // for layers, lm_head and embedding rows
};

}  // namespace k3
