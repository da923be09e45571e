#include "k3/plan/sim/sim_executor.h"

#include <algorithm>
#include <cmath>

#include "k3/base/rng.h"

namespace k3::plan {

// Measured curves are not smooth: neighbours whose chances rise are given their mean, which keeps the tokens of a step.
Result<Acceptance> Acceptance::of_lengths(const std::vector<double>& tokens_per_step) {
  struct Level {
    double sum = 0;
    size_t count = 0;
    double mean() const { return sum / static_cast<double>(count); }
  };
  std::vector<Level> levels;
  double before = 1;
  for (const double mean : tokens_per_step) {
    const double chance = mean - before;  // that one token more is accepted
    if (!(chance >= 0 && chance <= 1)) {
      return fail(Code::invalid_argument, "acceptance: {} tokens a step after {}: each further draft token adds from 0 to 1",
                  mean, before);
    }
    levels.push_back({chance, 1});
    while (levels.size() > 1 && levels[levels.size() - 2].mean() < levels.back().mean()) {
      const Level last = levels.back();
      levels.pop_back();
      levels.back().sum += last.sum;
      levels.back().count += last.count;
    }
    before = mean;
  }
  Acceptance out;
  for (const Level& level : levels) out.accepted.insert(out.accepted.end(), level.count, level.mean());
  return out;
}

Result<Acceptance> Acceptance::of_alpha(double alpha, int64_t draft_tokens) {
  if (!(alpha >= 0 && alpha <= 1)) return fail(Code::invalid_argument, "acceptance: {} is no chance from 0 to 1", alpha);
  if (draft_tokens < 1 || draft_tokens > 64)
    return fail(Code::invalid_argument, "speculation with {} draft tokens; 1 to 64", draft_tokens);
  Acceptance out;
  for (int64_t i = 1; i <= draft_tokens; ++i) out.accepted.push_back(std::pow(alpha, static_cast<double>(i)));
  return out;
}

double Acceptance::tokens_per_step() const {
  double sum = 1;
  for (const double chance : accepted) sum += chance;
  return sum;
}

Result<Tensor> SimExecutor::step(std::span<const StepItem> items) {
  parts_.clear();
  for (const StepItem& item : items) parts_.push_back({item.token_count, item.history, item.decode});
  const double seconds = clock_.step_seconds(parts_) + (idle_ ? clock_.fill_seconds(parts_) : 0) + delay_;
  delay_ = 0;
  idle_ = false;
  now_ += seconds;
  busy_ += seconds;
  return Tensor();
}

int64_t SimExecutor::repeat(std::span<const StepItem>, int64_t most) {
  if (acceptance_.on() || !may_repeat_ || !may_repeat_()) return 0;
  int64_t done = 0;
  while (done < most && now_ < horizon_) {
    for (StepPart& part : parts_) ++part.history_tokens;
    const double seconds = clock_.step_seconds(parts_);
    now_ += seconds;
    busy_ += seconds;
    ++done;
  }
  return done;
}

// One draw decides how many draft tokens are accepted: the first i with the chance of i.
int64_t SimExecutor::decode_tokens(RequestId request, int64_t generated, int64_t context) {
  if (!acceptance_.on()) return 1;
  const double draw = Rng(seed_, static_cast<uint64_t>(request)).uniform(static_cast<uint64_t>(generated));
  const double left = acceptance_.decay.factor(static_cast<double>(context));
  int64_t tokens = 1;
  for (const double chance : acceptance_.accepted) {
    if (draw >= chance * left) break;
    ++tokens;
  }
  return tokens;
}

}  // namespace k3::plan
