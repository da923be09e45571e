// Purpose:  the engine without its thread: requests in, one step at a time, callbacks out. Engine runs it on its thread; the
//           planner drives it with modelled time.
// Shapes:   none.
// Units:    tokens, seconds.
// Memory:   owns requests and the cache's sequences; executor and cache outlive it.
// Threads:  one thread.
// Errors:   check_request: invalid_argument. A fault of a request reaches its on_done.
// Source:   serving.md 3, 9.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "k3/cache/block_key.h"
#include "k3/cache/hybrid_cache.h"
#include "k3/engine/engine.h"
#include "k3/engine/executor.h"
#include "k3/engine/request.h"
#include "k3/engine/scheduler.h"

namespace k3 {

struct CoreOptions {
  SchedulePolicy schedule = SchedulePolicy::fcfs;
  int64_t ctx_tokens = 32768;
  int64_t step_tokens = 512;
  int64_t max_running = 32;
  double deadline_seconds = 0;
  bool keep_idle = true;
  // A step has prompts or single tokens, not both, and they take turns (a GPU has other kernels for either, and graphs for the
  // latter).
  bool separate_phases = false;
  int64_t prefill_keys = 0;  // most tokens that the prompts of a step attend to together, one always may; 0: any
  int64_t vocab = 0;
  int64_t block_tokens = 64;
  uint64_t key_seed = 0;
  std::string identity;  // first part of the extra keys
};

// What can never run: an empty prompt, one that fills the context, n over max_running, ids and parameters out of range.
Status check_request(const CoreOptions& options, const Request& request);

class EngineCore {
 public:
  EngineCore(const CoreOptions& options, cache::HybridCache& cache, Executor& executor);
  ~EngineCore();  // running requests end as interrupted
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  void submit(RequestId id, Request request);  // checked already
  void cancel(RequestId id);
  bool has_work() const;  // something runs or waits
  // Expires, admits, computes one step, samples. False when there was nothing to compute (all wait for pages, or no work).
  bool step();
  void stop_all(EndReason reason);  // ends everything
  void release_all_idle();

  Result<SlotResult> save_slot(int32_t slot, const std::string& path);
  Result<SlotResult> restore_slot(int32_t slot, const std::string& path);
  Result<SlotResult> erase_slot(int32_t slot);
  Result<SlotResult> fork_slot(int32_t slot);

  EngineStats stats() const;
  // The device failed: all requests have ended with its error, and so will every further one.
  const Status& device_status() const { return device_status_; }
  cache::HybridCache& cache() { return cache_; }
  int64_t waiting_requests() const;
  // Sequences: cheaper than stats().
  std::vector<RequestId> requests() const;  // that have not ended, in order of arrival
  int64_t steps() const { return counters_.steps; }
  int64_t running_count() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting_count() const { return static_cast<int64_t>(waiting_.size()); }

  struct Job;   // a request
  struct Line;  // one of its choices: a sequence that waits or runs

 private:
  struct Kept;
  struct Slot;

  void expire();
  void admit();
  bool admit_line(Line& line);
  static bool begins(const Kept& kept, const Line& line);
  bool take_idle(Line& line);
  void start(Line& line, const Admitted& admitted);
  void occupy(Line& line);
  int32_t free_slot(int32_t except = -1) const;
  bool release_idle(const Slot* except = nullptr);
  void empty(Slot& slot);
  void keep_idle(Slot& slot, cache::SequenceId sequence, Kept kept);
  Kept kept_of(const Line& line) const;
  bool make_room(Line& line, int64_t tokens);
  void preempt(Line& line);

  void choose_phase(const std::vector<Line*>& order);
  std::vector<Line*> plan_step(std::vector<StepItem>& items);
  void fail_step(const std::vector<Line*>& lines, const Error& error);
  RowChoice choice_of(const Line& line) const;
  void land(Line& line, const Tensor& rows, const ops::cuda::ChosenRow* chosen);
  void count_generated(Line& line, int64_t tokens);
  void report_prompt(Line& line, const Tensor& rows);
  void fork_choices(Line& line, std::span<const float> logits);
  void sample(Line& line, std::span<const float> logits);
  Result<int32_t> choose(Line& line, std::span<const float> logits);
  void take(Line& line, Result<int32_t> id, std::span<const float> logits);
  void emit(Line& line, int32_t id, std::span<const float> logits);

  void note_device(const Error& error);
  void end_on_lost_device();
  void end(Line& line, EndReason reason);
  void fault(Line& line, Error error, bool quarantine);
  void leave_cache(Line& line, bool may_idle);
  void finish_job(Job& job);
  void sweep();
  void measure_rate();
  void observe(EngineHistogram& histogram, double seconds);

  Candidate candidate(const Line& line) const;

  // core_modelled.cc
  static bool begins_modelled(const Kept& kept, const Line& line);
  void receive(Line& line);
  int64_t decode_tokens(const Line& line, int64_t budget);
  void land_modelled(Line& line, int64_t reached);
  int64_t repeats(const std::vector<Line*>& lines) const;
  void repeat_step(const std::vector<Line*>& lines, std::span<const StepItem> items);

  CoreOptions options_;
  cache::HybridCache& cache_;
  Executor& executor_;
  std::list<std::unique_ptr<Job>> jobs_;
  std::deque<Line*> waiting_;
  std::vector<Line*> running_;
  std::vector<Slot> slots_;
  uint64_t next_order_ = 1, idle_clock_ = 0;
  EngineStats counters_;
  std::vector<uint32_t> mask_;
  bool prefill_turn_ = true, decode_turn_ = true;  // what may stand in this step
  bool quiet_ = false;  // the last step changed nothing that those who wait could have waited for
  Status device_status_;
  double window_start_ = 0;
  int64_t window_tokens_ = 0;
};

}  // namespace k3
