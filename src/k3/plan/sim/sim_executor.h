// Purpose:  an Executor that computes nothing: every step moves a clock.
// Shapes:   none.
// Units:    seconds, tokens.
// Memory:   parts of the step at hand.
// Threads:  one thread; the StepClock may be shared if it is not one that caches.
// Errors:   none; a step has no logits.
// Source:   executor.h; cost-model.md 9.1 (tokens of a step with speculation).
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "k3/engine/executor.h"
#include "k3/plan/cost/speculation.h"
#include "k3/plan/sim/step_clock.h"

namespace k3::plan {

// P(the first i draft tokens are accepted) for i = 1 ..; empty: no speculation.
struct Acceptance {
  std::vector<double> accepted;
  ContextDecay decay;  // of all chances

  // From mean tokens of a step for 1, 2, .. draft tokens (1.84, 2.45, ...), or from one chance alpha a token.
  static Result<Acceptance> of_lengths(const std::vector<double>& tokens_per_step);
  static Result<Acceptance> of_alpha(double alpha, int64_t draft_tokens);
  bool on() const { return !accepted.empty(); }
  double tokens_per_step() const;
};

class SimExecutor final : public Executor {
 public:
  SimExecutor(const StepClock& clock, const Acceptance& acceptance, uint64_t seed, int64_t most_tokens)
      : clock_(clock), acceptance_(acceptance), seed_(seed), most_tokens_(most_tokens) {}

  void set_now(double seconds) {  // nothing was done until then
    now_ = seconds;
    idle_ = true;
  }
  void set_horizon(double seconds) { horizon_ = seconds; }  // repeat() begins no step at this time or later
  void set_repeats(std::function<bool()> may) { may_repeat_ = std::move(may); }  // asked each time; none: never
  void delay(double seconds) { delay_ += seconds; }  // of the next step: copies and transfers ahead of it

  Result<Tensor> step(std::span<const StepItem> items) override;
  double now_seconds() const override { return now_; }
  int64_t most_tokens() const override { return most_tokens_; }
  int64_t most_rows() const override { return int64_t{1} << 30; }
  int64_t repeat(std::span<const StepItem> items, int64_t most) override;
  int64_t decode_tokens(RequestId request, int64_t generated, int64_t context) override;

  double busy_seconds() const { return busy_; }

 private:
  const StepClock& clock_;
  const Acceptance& acceptance_;
  uint64_t seed_;
  int64_t most_tokens_;
  bool idle_ = true;  // before the next step
  double now_ = 0, horizon_ = 0, delay_ = 0, busy_ = 0;
  std::function<bool()> may_repeat_;
  std::vector<StepPart> parts_;
};

}  // namespace k3::plan
