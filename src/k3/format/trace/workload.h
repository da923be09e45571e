// Purpose:  which requests to send or to simulate: from the records of a trace, or synthetic ones.
// Shapes:   a prompt is a list of pieces; a piece is the first `tokens` tokens of a stream that its id alone decides, so that equal
//           ids at equal places are equal texts.
// Units:    tokens, seconds of the trace's clock.
// Memory:   by value.
// Threads:  pure functions.
// Errors:   invalid_argument for a text that is no range or distribution, and when nothing of a trace is left; what TraceReader says.
// Source:   docs/loadgen.md; the load generator and the simulator replay the same requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/base/result.h"
#include "k3/base/rng.h"
#include "k3/format/trace/trace.h"

namespace k3 {

struct PromptPiece {
  uint64_t id = 0;
  int64_t tokens = 0;
};
using PromptPieces = std::vector<PromptPiece>;

int64_t prompt_tokens(const PromptPieces& prompt);

struct PlannedRequest {
  double at_s = 0;       // by the trace's clock, from 0 for the first
  int64_t session = -1;  // requests of one session follow each other; -1: alone
  int64_t turn = 0;
  double think_s = 0;          // between the end of the turn before and this one
  bool not_before_at = false;  // a later turn that also keeps the trace's time (traces that tell no think times)
  PromptPieces prompt;
  int64_t input_tokens = 0, output_tokens = 0;
};

struct SessionRange {
  int64_t first = 0, last = 0;
};
Result<SessionRange> parse_sessions(std::string_view text);  // "0-11" or "7"

struct TraceWorkload {
  double scale = 1;        // of input and output lengths; a block keeps its id and shrinks with them
  int64_t max_output = 0;  // 0: as the trace says
  int64_t max_input = 0;   // 0: all; longer requests are left out
  std::optional<SessionRange> sessions;
  int64_t limit = 0;  // 0: all
};

// The requests of a trace in file order; invalid_argument when none is left.
Result<std::vector<PlannedRequest>> workload_from_trace(TraceReader& reader, const TraceWorkload& options);

// "512", "uniform:100:2000", "lognormal:1000:0.8" (median and sigma of the logarithm).
class LengthDistribution {
 public:
  static Result<LengthDistribution> parse(std::string_view text);
  int64_t draw(const Rng& rng, uint64_t counter) const;  // at least 1

 private:
  enum class Kind { fixed, uniform, lognormal } kind_ = Kind::fixed;
  double a_ = 1, b_ = 0;
};

struct SyntheticWorkload {
  int64_t requests = 100;
  LengthDistribution input, output;
  int64_t turns = 1;                 // of a session: each prompt begins with all that came before it
  int64_t shared_prefix_tokens = 0;  // that every session begins with
  double think_s = 0;                // between turns
  uint64_t seed = 0;
};
std::vector<PlannedRequest> synthetic_workload(const SyntheticWorkload& options);

// Requests to warm a server up: of the given length, with content that no workload has.
std::vector<PlannedRequest> warmup_workload(int64_t requests, int64_t input_tokens);

}  // namespace k3
