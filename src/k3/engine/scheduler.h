// Purpose:  pure decisions of the engine: who waits before whom, how a step's tokens are shared out, who gives way.
// Shapes:   none.
// Units:    tokens, seconds.
// Memory:   by value.
// Threads:  pure functions.
// Errors:   none.
// Source:   serving.md 8, 9. Decodes come first (one token each). Of what is left of the budget the first prompt in order of
//           precedence is sure of a quarter; the rest goes to the prompts with the fewest tokens left. So a short prompt does
//           not wait for a long one, a long one is never stopped by short ones, and equal ones are finished one by one (sharing
//           evenly would end them all as late as the last).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace k3 {

enum class SchedulePolicy { fcfs, slo };

// One that waits or runs, as far as scheduling is concerned.
struct Candidate {
  uint64_t order = 0;             // of arrival
  int32_t priority = 0;           // slo: higher first
  double due_seconds = 0;         // slo: when its first token should be there; 0: no target
  bool resumed = false;           // was running before: goes first
  int64_t prefill_tokens = 0;     // still to compute before the next token
};

// True when a goes before b.
bool goes_before(SchedulePolicy policy, const Candidate& a, const Candidate& b);

// Tokens of each prompt in this step, given in order of precedence; sums to at most budget.
std::vector<int64_t> share_prefill(std::span<const int64_t> remaining, int64_t budget);

// Which of the running sequences gives its pages up when there are none left: the one that goes last. Returns its index.
size_t choose_victim(SchedulePolicy policy, std::span<const Candidate> running);

}  // namespace k3
