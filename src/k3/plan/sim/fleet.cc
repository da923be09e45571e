#include "k3/plan/sim/fleet.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <unordered_map>

#include "k3/base/rng.h"
#include "k3/base/threads.h"
#include "k3/plan/sim/cell.h"

namespace k3::plan {
namespace {

constexpr uint64_t kArrivals = 0xa77;  // stream of random numbers

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x7fb5d329728ea185;
  value = (value ^ (value >> 27)) * 0x81dadef4bc2dd44d;
  return value ^ (value >> 33);
}

bool affinity_needed(const SimScenario& s) { return s.replicas > 1 || s.prefill_engines > 1 || s.decode_engines > 1; }

class Fleet {
 public:
  Fleet(const SimScenario& scenario, const Workload& workload, SimResult& result)
      : scenario_(scenario),
        workload_(workload),
        result_(result),
        affinity_(affinity_needed(scenario) ? affinity_of(workload) : std::vector<uint64_t>(workload.requests.size())),
        pool_(scenario.threads) {}

  Status run(const std::function<void(double)>& progress) {
    result_.records.assign(workload_.requests.size(), {});
    for (int32_t i = 0; i < scenario_.replicas; ++i) {
      cells_.push_back(std::make_unique<Cell>(scenario_, workload_, affinity_, i, result_.records));
      K3_TRY(cells_.back()->open());
    }
    down_.resize(cells_.size(), -1);
    place_all();
    std::vector<Failure> failures = scenario_.failures;
    std::ranges::stable_sort(failures, {}, &Failure::at_seconds);
    for (const Failure& failure : failures) {
      run_cells(failure.at_seconds, {});
      K3_TRY(fail(failure));
    }
    run_cells(INFINITY, progress);
    collect();
    return {};
  }

 private:
  bool up(size_t cell, double seconds) const { return seconds >= down_[cell]; }

  // Among the first `count` replicas, of those that are up then; -1: there is none.
  int32_t place(int32_t index, double seconds, size_t count) {
    if (scenario_.routing == Routing::round_robin) {
      for (size_t tried = 0; tried < count; ++tried) {
        const size_t cell = next_++ % count;
        if (up(cell, seconds)) return static_cast<int32_t>(cell);
      }
      return -1;
    }
    int32_t best = -1;
    uint64_t best_weight = 0;
    for (size_t cell = 0; cell < count; ++cell) {
      const uint64_t weight = mix(affinity_[static_cast<size_t>(index)] + mix(cell + 1));
      if (up(cell, seconds) && (best < 0 || weight > best_weight)) best = static_cast<int32_t>(cell), best_weight = weight;
    }
    return best;
  }

  // Users belong to a replica, so of fewer users than replicas some replicas have nobody to do their work.
  Cell& home(int32_t index) {
    const size_t manned =
        scenario_.pacing == SimPacing::users ? std::min(cells_.size(), static_cast<size_t>(scenario_.users)) : cells_.size();
    return *cells_[static_cast<size_t>(place(index, 0, manned))];
  }

  void place_all() {
    const SimPacing pacing = scenario_.pacing;
    const Rng rng(scenario_.seed, kArrivals);
    double clock = 0;
    if (pacing == SimPacing::recorded_order) cells_.front()->follow_recording();
    for (size_t i = 0; i < workload_.requests.size(); ++i) {
      const auto index = static_cast<int32_t>(i);
      const SimRequest& r = workload_.requests[i];
      if (pacing == SimPacing::recorded) {
        if (scenario_.recorded[i].start_seconds >= 0) home(index).start_at(index, scenario_.recorded[i].start_seconds);
      } else if (pacing == SimPacing::sequential) {
        cells_.front()->line_up(index);
      } else if (pacing != SimPacing::recorded_order && r.previous < 0) {
        if (pacing == SimPacing::users) home(index).line_up(index);
        if (pacing == SimPacing::trace) home(index).start_at(index, r.at_seconds / scenario_.speed);
        if (pacing != SimPacing::poisson) continue;
        home(index).start_at(index, clock);
        clock += -std::log1p(-rng.uniform(i)) / scenario_.rate_per_second;
      }
    }
    const auto count = static_cast<int64_t>(cells_.size());
    for (int64_t cell = 0; cell < count; ++cell) {
      const int64_t users = pacing == SimPacing::sequential ? (cell == 0 ? 1 : 0)
                            : pacing == SimPacing::users ? scenario_.users / count + (cell < scenario_.users % count ? 1 : 0)
                                                         : 0;
      cells_[static_cast<size_t>(cell)]->start_users(users);
    }
  }

  // Cells share nothing until then, so any thread may take any of them.
  void run_cells(double until, const std::function<void(double)>& progress) {
    std::atomic<size_t> next{0};
    pool_.run([&](int worker) {
      for (size_t cell; (cell = next.fetch_add(1)) < cells_.size();) {
        cells_[cell]->run(until);
        if (worker == 0 && progress) progress(static_cast<double>(cell + 1) / static_cast<double>(cells_.size()));
      }
    });
  }

  Status fail(const Failure& failure) {
    const auto failed = static_cast<size_t>(failure.replica);
    const double back = failure.at_seconds + failure.repair_seconds;
    down_[failed] = back;
    K3_TRY_ASSIGN(const std::vector<Cell::Orphan> orphans, cells_[failed]->fail(failure.at_seconds, back));
    std::vector<size_t> users_at;  // where those went on who take what stands in line
    for (const Cell::Orphan& orphan : orphans) {
      if (orphan.in_line) continue;
      double seconds = orphan.seconds;
      int32_t cell = place(orphan.request, seconds, cells_.size());
      if (cell < 0) {  // nobody is up: it waits for the first that comes back
        seconds = *std::ranges::min_element(down_);
        if (!std::isfinite(seconds)) {
          lose(orphan.request, failure.at_seconds);
          continue;
        }
        cell = place(orphan.request, seconds, cells_.size());
      }
      cells_[static_cast<size_t>(cell)]->restart_at(orphan.request, seconds);
      users_at.push_back(static_cast<size_t>(cell));
    }
    const bool nobody = users_at.empty() && !result_.loss.empty();
    if (users_at.empty()) users_at.push_back(failed);  // they are thinking, and it is back before they go on
    size_t turn = 0;
    for (const Cell::Orphan& orphan : orphans) {
      if (!orphan.in_line) continue;
      if (nobody) lose(orphan.request, failure.at_seconds);
      if (!nobody) cells_[users_at[turn++ % users_at.size()]]->line_up(orphan.request);
    }
    return {};
  }

  void lose(int32_t index, double seconds) {
    result_.records[static_cast<size_t>(index)].outcome = SimOutcome::lost;
    if (result_.loss.empty()) {
      result_.loss =
          fmt::format("the failure at {} s left no replica, and none comes back; --fail R@S+REPAIR says when one does", seconds);
    }
  }

  // A turn whose session was lost before it.
  void lose_later_turns() {
    for (size_t i = 0; i < result_.records.size(); ++i) {
      const int32_t before = workload_.requests[i].previous;
      if (before < 0 || result_.records[i].outcome != SimOutcome::not_sent) continue;
      if (result_.records[static_cast<size_t>(before)].outcome == SimOutcome::lost)
        result_.records[i].outcome = SimOutcome::lost;
    }
  }

  void collect() {
    for (const auto& cell : cells_) {
      cell->close(&result_.summary);
      result_.series.merge(cell->series());
      if (result_.first_refusal.empty()) result_.first_refusal = cell->refusal();
    }
    lose_later_turns();
    summarise(scenario_, workload_, &result_);
  }

  const SimScenario& scenario_;
  const Workload& workload_;
  SimResult& result_;
  std::vector<uint64_t> affinity_;
  ThreadPool pool_;
  std::vector<std::unique_ptr<Cell>> cells_;
  std::vector<double> down_;  // until when
  size_t next_ = 0;
};

Status check_engine(const EngineSettings& e, const char* what) {
  const auto bad = [&](std::string_view setting, auto value) {
    return fail(Code::invalid_argument, "{}: {} of {}", what, setting, value);
  };
  if (e.clock == nullptr) return fail(Code::invalid_argument, "{}: no clock", what);
  if (e.core.ctx_tokens < 2) return bad("a context", e.core.ctx_tokens);
  if (e.core.step_tokens < 1) return bad("steps of tokens", e.core.step_tokens);
  if (e.core.max_running < 1) return bad("running sequences", e.core.max_running);
  if (e.core.block_tokens != e.shape.block_tokens) return bad("blocks", e.core.block_tokens);
  if (e.queue < 1) return bad("a queue", e.queue);
  if (e.host_bytes < 0 || e.remote_bytes < 0) return bad("a tier", std::min(e.host_bytes, e.remote_bytes));
  for (const double rate : {e.host_bytes_per_second, e.remote_bytes_per_second, e.remote_seconds}) {
    if (!(rate >= 0) || !std::isfinite(rate)) return bad("a tier's rate or latency", rate);
  }
  return {};
}

}  // namespace

Status validate(const SimScenario& s) {
  K3_TRY(check_engine(s.engine, s.prefill_engines > 0 ? "prefill engine" : "engine"));
  if (s.prefill_engines > 0 || s.decode_engines > 0) {
    if (s.prefill_engines < 1 || s.decode_engines < 1)
      return fail(Code::invalid_argument, "P/D needs prefill and decode engines, not {} and {}", s.prefill_engines,
                  s.decode_engines);
    K3_TRY(check_engine(s.decode, "decode engine"));
  }
  const auto positive = [](const char* name, double value, bool zero) -> Status {
    if (std::isfinite(value) && (zero ? value >= 0 : value > 0)) return {};
    return fail(Code::invalid_argument, "{}: {} is no {} number", name, value,
                zero ? "positive number or 0: no such" : "positive");
  };
  K3_TRY(positive("speed", s.speed, false));
  K3_TRY(positive("rate", s.rate_per_second, false));
  K3_TRY(positive("think time", s.think_seconds, true));
  K3_TRY(positive("time of a request before the engine", s.request_seconds, true));
  K3_TRY(positive("duration", s.duration_seconds, true));
  K3_TRY(positive("transfer rate", s.transfer_bytes_per_second, true));
  K3_TRY(positive("transfer latency", s.transfer_seconds, true));
  if (s.replicas < 1 || s.replicas > 100'000) return fail(Code::invalid_argument, "replicas: {}; 1 to 100,000", s.replicas);
  if (s.users < 1) return fail(Code::invalid_argument, "users: {}", s.users);
  if (s.threads < 1) return fail(Code::invalid_argument, "threads: {}", s.threads);
  if ((s.pacing == SimPacing::sequential || s.pacing == SimPacing::recorded_order) &&
      (s.replicas > 1 || s.prefill_engines > 0)) {
    return fail(Code::invalid_argument, "one request at a time, and a recorded order, are for one replica without P/D");
  }
  int64_t last = 0;
  for (const BudgetClass& budget : s.budgets) {
    if (budget.most_tokens <= last || !(budget.seconds > 0)) {
      return fail(Code::invalid_argument, "budget of {} s for prompts up to {} tokens: lengths ascend, seconds are positive",
                  budget.seconds, budget.most_tokens);
    }
    last = budget.most_tokens;
  }
  for (const Failure& f : s.failures) {
    if (f.replica < 0 || f.replica >= s.replicas || !(f.at_seconds >= 0) || !(f.repair_seconds > 0)) {
      return fail(Code::invalid_argument, "failure of replica {} of {}, counted from 0, at {} s for {} s", f.replica, s.replicas,
                  f.at_seconds, f.repair_seconds);
    }
  }
  return {};
}

std::vector<uint64_t> affinity_of(const Workload& workload) {
  std::vector<uint64_t> out(workload.requests.size());
  std::unordered_map<uint64_t, uint64_t> owner;  // by piece: the group that had it first
  for (size_t i = 0; i < out.size(); ++i) {
    const SimRequest& r = workload.requests[i];
    if (r.session >= 0) {
      out[i] = mix(static_cast<uint64_t>(r.session) * 2);
      continue;
    }
    const auto prompt = workload.prompt(r);
    size_t known = 0;
    uint64_t group = mix(i * 2 + 1);
    for (auto at = owner.end(); known < prompt.size() && (at = owner.find(prompt[known].id)) != owner.end(); ++known) {
      if ((known + 1) * 2 >= prompt.size()) group = at->second;
    }
    for (size_t p = known; p < prompt.size(); ++p) owner.emplace(prompt[p].id, group);
    out[i] = group;
  }
  return out;
}

Result<SimResult> simulate(const SimScenario& scenario, const Workload& workload,
                           const std::function<void(double)>& progress) {
  K3_TRY(validate(scenario));
  if (workload.requests.empty()) return fail(Code::invalid_argument, "no requests");
  const bool recorded = scenario.pacing == SimPacing::recorded || scenario.pacing == SimPacing::recorded_order;
  if (recorded && scenario.recorded.size() != workload.requests.size()) {
    return fail(Code::invalid_argument, "{} recorded requests for {} of the workload", scenario.recorded.size(),
                workload.requests.size());
  }
  SimResult result;
  result.name = scenario.name;
  Fleet fleet(scenario, workload, result);
  K3_TRY(fleet.run(progress));
  return result;
}

}  // namespace k3::plan
