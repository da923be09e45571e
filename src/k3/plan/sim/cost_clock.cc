#include "k3/plan/sim/cost_clock.h"

#include <algorithm>
#include <vector>

#include "k3/plan/cost/validate.h"

namespace k3::plan {

Result<std::shared_ptr<const CostClock>> CostClock::create(const Deployment& deployment, int64_t draft_tokens, SpeculationScheme scheme) {
  K3_TRY(validate(deployment));
  DecodeBatch batch;
  batch.draft_tokens = draft_tokens;
  batch.scheme = scheme;
  K3_TRY(validate(batch));
  return std::shared_ptr<const CostClock>(new CostClock(deployment, draft_tokens, scheme));
}

double CostClock::step_seconds(std::span<const StepPart> parts) const {
  int64_t decodes = 0, history = 0;
  std::vector<PrefillSequence> prompts;
  for (const StepPart& part : parts) {
    if (part.decode) {
      ++decodes;
      history += part.history_tokens;
    } else {
      prompts.push_back({part.new_tokens, part.history_tokens});
    }
  }
  double seconds = 0;
  if (decodes > 0) {
    DecodeBatch batch;
    batch.requests = decodes;
    batch.context_tokens = static_cast<double>(history) / static_cast<double>(decodes);
    batch.draft_tokens = draft_tokens_;
    batch.scheme = scheme_;
    seconds += decode_step(deployment_, batch).seconds;
  }
  if (!prompts.empty()) {
    const PrefillTime time = prefill_time(deployment_, {prompts, 1});
    seconds += deployment_.layout.pp > 1 ? time.seconds : time.latency_seconds;
  }
  return std::max(seconds, kLeastStepSeconds);
}

}  // namespace k3::plan
