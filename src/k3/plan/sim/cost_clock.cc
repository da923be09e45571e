#include "k3/plan/sim/cost_clock.h"

#include <algorithm>
#include <vector>

#include "k3/plan/cost/validate.h"

namespace k3::plan {

Result<std::shared_ptr<const CostClock>> CostClock::create(const Deployment& deployment, int64_t draft_tokens,
                                                           SpeculationScheme scheme) {
  K3_TRY(validate(deployment));
  DecodeBatch batch;
  batch.draft_tokens = draft_tokens;
  batch.scheme = scheme;
  K3_TRY(validate(batch));
  return std::shared_ptr<const CostClock>(new CostClock(deployment, draft_tokens, scheme));
}

namespace {

std::vector<PrefillSequence> prompts_of(std::span<const StepPart> parts) {
  std::vector<PrefillSequence> out;
  for (const StepPart& part : parts) {
    if (!part.decode) out.push_back({part.new_tokens, part.history_tokens});
  }
  return out;
}

}  // namespace

double CostClock::fill_seconds(std::span<const StepPart> parts) const {
  const std::vector<PrefillSequence> prompts =
      deployment_.layout.pp > 1 ? prompts_of(parts) : std::vector<PrefillSequence>{};
  if (prompts.empty()) return 0;
  int64_t tokens = 0;
  for (const PrefillSequence& prompt : prompts) tokens += prompt.new_tokens;
  const int64_t groups = std::max<int64_t>(1, deployment_.layout.dp / deployment_.layout.kcp);
  const int64_t of_a_group = (tokens + groups - 1) / groups;
  const PrefillTime time = prefill_time(deployment_, {prompts, std::max<int64_t>(1, of_a_group / kPipelineChunkTokens)});
  return std::max(0.0, time.latency_seconds - time.seconds);
}

double CostClock::step_seconds(std::span<const StepPart> parts) const {
  int64_t decodes = 0, history = 0;
  for (const StepPart& part : parts) {
    decodes += part.decode ? 1 : 0;
    history += part.decode ? part.history_tokens : 0;
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
  if (decodes < static_cast<int64_t>(parts.size())) {
    const std::vector<PrefillSequence> prompts = prompts_of(parts);
    const PrefillTime time = prefill_time(deployment_, {prompts, 1});
    seconds += deployment_.layout.pp > 1 ? time.seconds : time.latency_seconds;
  }
  return std::max(seconds, kLeastStepSeconds);
}

}  // namespace k3::plan
