// Purpose:  a clock that asks the cost model.
// Shapes:   none.
// Units:    seconds.
// Memory:   its deployment.
// Threads:  const and without a cache: any number of threads.
// Errors:   create: those of validate(deployment).
// Source:   cost-model.md 8.1, 8.2. Decodes count with their mean history. A step of both kinds takes the time of both, one
// after
//           the other. Prefill: the latency of the step; with pipeline stages its time in a stage (steps follow each other
//           there), and the pipeline's fill for the first one after a pause.
#pragma once

#include <memory>

#include "k3/plan/cost/decode.h"
#include "k3/plan/cost/deployment.h"
#include "k3/plan/cost/prefill.h"
#include "k3/plan/sim/step_clock.h"

namespace k3::plan {

// The cost model is bytes and rates; a step of no length cannot be.
inline constexpr double kLeastStepSeconds = 1e-9;
// Tokens that pass an attention group's pipeline of stages in one piece.
inline constexpr int64_t kPipelineChunkTokens = 2048;

class CostClock final : public StepClock {
 public:
  static Result<std::shared_ptr<const CostClock>> create(const Deployment& deployment, int64_t draft_tokens = 0,
                                                         SpeculationScheme scheme = SpeculationScheme::fused);
  double step_seconds(std::span<const StepPart> parts) const override;
  double fill_seconds(std::span<const StepPart> parts) const override;

 private:
  CostClock(const Deployment& deployment, int64_t draft_tokens, SpeculationScheme scheme)
      : deployment_(deployment), draft_tokens_(draft_tokens), scheme_(scheme) {}

  Deployment deployment_;
  int64_t draft_tokens_;
  SpeculationScheme scheme_;
};

}  // namespace k3::plan
