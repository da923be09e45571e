// Purpose:  how long a step of an engine takes: the seam between a cost model and the simulator.
// Shapes:   one part for each sequence of the step.
// Units:    tokens, seconds.
// Memory:   none.
// Threads:  const functions; a clock that caches belongs to one thread.
// Errors:   none; the answer is positive and finite for every step that an engine can plan.
// Source:   architecture: "One model definition", point 8.
#pragma once

#include <cstdint>
#include <span>

namespace k3::plan {

// One sequence's part of a step.
struct StepPart {
  int64_t new_tokens = 0, history_tokens = 0;
  bool decode = false;  // the one token that the last step chose; else a part of a prompt
};

class StepClock {
 public:
  virtual ~StepClock() = default;
  virtual double step_seconds(std::span<const StepPart> parts) const = 0;
  // What the step takes besides when the engine had nothing to do before it: pipelines are empty then.
  virtual double fill_seconds(std::span<const StepPart> /*parts*/) const { return 0; }
};

}  // namespace k3::plan
