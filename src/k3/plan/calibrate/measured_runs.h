// Purpose:  measurements of one's own, from the JSON of `k3 bench --json` and `k3 loadgen --json`, as points that the cost
//           model can be asked for.
// Shapes:   none.
// Units:    seconds, tokens.
// Memory:   plain values.
// Threads:  pure functions.
// Errors:   invalid_argument: file, field by its path, what is wrong with it; runs that no closed form describes (open
// loops,
//           several thread counts in one file) are refused by name. not_found: no such file.
// Source:   src/k3/cli/bench/bench_report.cc, src/k3/server/loadgen/load_summary.cc (what they write).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"

namespace k3::plan {

struct MeasuredPoint {
  enum class Kind { decode_step, prefill, ttft, tpot };
  std::string name;  // "bench.json: decode of 8 at 4,096"
  Kind kind = Kind::decode_step;
  int64_t users = 1;      // sequences of a step, prompts of a prefill, users of a closed loop
  double context = 0;     // decode_step: tokens of history, in the mean
  double past = 0;        // prefill: tokens that were there before
  double input = 0;       // prefill: new tokens of each; ttft, tpot: of a prompt, without those from the cache
  double output = 0;      // ttft, tpot: of an answer
  double seconds = 0;     // the median
  double spread = 0;      // of the median: half the range of the runs; of a load (p95 / p50 - 1) / sqrt(requests)
  double parameters = 0;  // of the model that ran; 0: not told
};

// Which of the two it is, its fields tell. `source` names it in messages.
Result<std::vector<MeasuredPoint>> parse_measured_run(std::string_view json, const std::string& source);
Result<std::vector<MeasuredPoint>> load_measured_run(const std::string& path);

}  // namespace k3::plan
