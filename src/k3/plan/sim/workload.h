// Purpose:  the requests of a simulation, and the keys of the blocks of their prompts and answers.
// Shapes:   one record a request, in file order; pieces of all prompts in one array.
// Units:    tokens, seconds.
// Memory:   64 bytes a request, 16 a piece (of a trace: a block of 512 tokens).
// Threads:  immutable once made.
// Errors:   make_workload: invalid_argument for what a simulation cannot hold.
// Source:   serving.md 3.1; format/trace/workload.h. A key stands for the content of its block and of all before it: equal pieces at
//           equal places give equal keys, whatever the size of the blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "k3/base/result.h"
#include "k3/cache/block_key.h"
#include "k3/format/trace/workload.h"

namespace k3::plan {

struct SimRequest {
  double at_seconds = 0;     // by the trace's clock
  double think_seconds = 0;  // between the end of the turn before and this one
  int64_t session = -1;
  int32_t turn = 0;
  int32_t previous = -1, next = -1;  // turns of the same session
  int32_t chain = 0;                 // the first of the turns of which each is the beginning of the next, answers included
  bool not_before_at = false;        // a later turn that also keeps the trace's time
  int32_t input_tokens = 0, output_tokens = 0;
  uint32_t pieces = 0;
  uint64_t first_piece = 0;
};

struct Workload {
  std::vector<SimRequest> requests;
  std::vector<PromptPiece> pieces;
  // The next turn of a session holds the answer of this one (what a service sees). False: what stands in its place is another text
  // (what a replay by the load generator sends), so that blocks of answers are never met again.
  bool answers_continue = true;

  std::span<const PromptPiece> prompt(const SimRequest& request) const {
    return std::span(pieces).subspan(request.first_piece, request.pieces);
  }
};

Result<Workload> make_workload(const std::vector<PlannedRequest>& planned, bool answers_continue = true);

// Keys of the complete blocks of the first `tokens` of a request's prompt and answer.
std::vector<cache::BlockKey> block_keys(const Workload& workload, int32_t index, int64_t block_tokens, int64_t tokens);

// How many first tokens of this request's prompt are the sequence that its session held before; 0: it is the first turn.
int64_t continued_tokens(const Workload& workload, int32_t index);

}  // namespace k3::plan
