// Purpose:  one engine of a simulation: the real core and cache on an executor that moves a clock, and the requests that wait before it.
// Shapes:   none.
// Units:    seconds, tokens, bytes.
// Memory:   the records of the cache; no pages.
// Threads:  one thread.
// Errors:   create: what the cache says of its options.
// Source:   serving.md 3.5, 9 (budgets).
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "k3/plan/sim/sim_result.h"

namespace k3::plan {

class Cell;
class TimedTier;

class SimEngine {
 public:
  enum class Role { both, prefill, decode };

  static Result<std::unique_ptr<SimEngine>> create(const SimScenario& scenario, const EngineSettings& settings, Role role);
  ~SimEngine();

  Role role() const { return role_; }
  double now() const { return executor_->now_seconds(); }
  SimExecutor& executor() { return *executor_; }
  EngineCore& core() { return *core_; }
  cache::HybridCache& cache() { return *cache_; }
  const EngineSettings& settings() const { return settings_; }
  bool busy() const { return core_->has_work() || gated_ > 0; }
  int64_t requests() const { return gated_ + core_->running_count() + core_->waiting_count(); }

  // A request comes to wait before the engine; cost: seconds of its prefill, counted when there are budgets.
  void gate(int32_t request, int64_t prompt_tokens, double cost);
  // The next one that may go on into the engine's queue, or -1.
  int32_t pass();
  void settle(int64_t prompt_tokens, double cost);  // its prefill is over
  std::vector<int32_t> gated() const;

  bool step();              // of the core; notes what was before it
  void wait(double until);  // nothing is under way
  void count(const Admitted& found);  // tokens of its prompt, and those that it skips
  SimSample state() const;
  SimSeries& series() { return series_; }
  int64_t fetched_bytes() const;  // from all tiers, so far

 private:
  SimEngine(const SimScenario& scenario, const EngineSettings& settings, Role role) : scenario_(scenario), settings_(settings), role_(role) {}
  Status open();
  size_t class_of(int64_t prompt_tokens) const;
  size_t open_class() const;

  struct Waiting {
    int32_t request = 0;
    double cost = 0;
    uint64_t order = 0;
  };

  const SimScenario& scenario_;
  const EngineSettings& settings_;
  Role role_;
  std::unique_ptr<SimExecutor> executor_;
  std::vector<std::shared_ptr<TimedTier>> tiers_;
  std::unique_ptr<cache::HybridCache> cache_;
  std::unique_ptr<EngineCore> core_;
  std::vector<std::deque<Waiting>> classes_;
  std::vector<double> under_way_;  // seconds of prefill, by class
  int64_t gated_ = 0, prompt_tokens_ = 0, hit_tokens_ = 0;
  uint64_t next_order_ = 0;
  SimSeries series_;
};

}  // namespace k3::plan
