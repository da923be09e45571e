// Purpose:  the serving engine: one thread that owns requests, cache and schedule, and computes step by step.
// Shapes:   none.
// Units:    tokens, seconds, bytes.
// Memory:   owns the hybrid cache; the model and thread pool outlive it.
// Threads:  every member may be called from any thread except as said; work is done on one thread of its own, which calls
//           back (request.h). No lock is held while the model computes.
// Errors:   submit: exhausted when the queue is full (retry_after_seconds() says when to come back), invalid_argument for what
//           can never run (prompt + 1 over the context, n, ids outside the vocabulary), unavailable when draining.
//           A fault of one request ends that request alone.
// Source:   serving.md 9; architecture: "Runtime shape".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "k3/cache/hybrid_cache.h"
#include "k3/engine/request.h"
#include "k3/engine/scheduler.h"
#include "k3/model/model.h"

namespace k3 {

struct EngineOptions {
  ops::Policy policy = ops::Policy::bf16;
  ops::Isa isa = ops::detect_isa();
  bool deterministic = false;
  bool int8_activations = false;
  SchedulePolicy schedule = SchedulePolicy::fcfs;
  int64_t ctx_tokens = 32768;   // most tokens of a sequence
  int64_t step_tokens = 512;    // token budget of a step: decodes first, then prefill chunks
  int64_t max_running = 32;     // sequences (choices) at once
  int64_t max_queued = 256;     // requests that wait
  double deadline_seconds = 0;  // default of requests; 0: none
  bool keep_idle = true;        // a finished sequence stays resumable to the token while its pages are not needed
  std::string slot_save_path;   // folder of slot files; empty: saving is off

  cache::CacheDtypes dtypes;       // policy exact requires FP32 throughout
  int64_t block_tokens = 0;        // 0: 64, or 512 for models of K3's size
  // 0: room for max_running sequences of ctx_tokens, at most half of free memory; on a GPU all that weights and scratch leave,
  // but for kGpuMargin.
  int64_t pool_bytes = 0;
  cache::CheckpointPolicy checkpoints;
  bool prefix_cache = true;
  int64_t host_bytes = 0, disk_bytes = 0;
  std::string disk_folder;
  bool poison = false;           // tests
  int64_t lose_device_at = 0;    // tests: this step, counted from 1, ends as on a GPU that fails
};

// Stays free on a GPU beside the pool: for logits of prompts, scratch of steps that no rehearsal had, the driver.
inline constexpr int64_t kGpuMargin = int64_t{1} << 30;

enum class SlotState { empty, waiting, prefill, decode, idle };
struct SlotInfo {
  int32_t index = 0;
  SlotState state = SlotState::empty;
  std::string request;     // name; empty when idle
  int64_t tokens = 0;      // in the cache
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
};

struct SlotResult {
  int32_t slot = 0;
  int64_t tokens = 0, bytes = 0;
  double seconds = 0;
};

// Fixed bounds, in seconds, of the histograms (Prometheus style: cumulative counts are made by the reader).
struct EngineHistogram {
  std::vector<double> bounds;
  std::vector<int64_t> counts;  // bounds.size() + 1
  double sum = 0;
};

struct EngineStats {
  int64_t running = 0, waiting = 0, swapped = 0;  // sequences, requests, preempted sequences
  int64_t requests_done = 0, requests_failed = 0, requests_cancelled = 0, requests_rejected = 0;
  int64_t ended_by_stop = 0, ended_by_length = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0, computed_tokens = 0;
  int64_t resumed_prompt_tokens = 0, resumed_tokens = 0;  // of prompts that an idle sequence began; what it held of them
  int64_t preemptions = 0, steps = 0, nonfinite = 0;
  double step_seconds = 0;          // sum
  double last_step_age_seconds = 0;  // since the last step ended, 0 when nothing is pending
  double tokens_per_second = 0;      // generated, over the last few seconds
  EngineHistogram ttft, inter_token, e2e, queue;
  cache::CacheStats cache;
  std::vector<SlotInfo> slots;
};

// What a start prints and /props answers: how many users at what context.
struct CapacityLine {
  int64_t ctx_tokens = 0;
  int64_t sequences = 0;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(const Model& model, ThreadPool& pool, const EngineOptions& options);
  ~Engine();  // stops at once: running requests end as interrupted

  Result<RequestId> submit(Request request);
  void cancel(RequestId id);  // no effect when it has ended
  double retry_after_seconds() const;

  // Slots: running or idle sequences. Save and fork take a sequence between two steps; files lie in slot_save_path and are
  // written whole or not at all. unsupported when no folder was given; invalid_argument for a name with a slash;
  // not_found for a slot without a sequence or a file; corrupt or invalid_argument for a file that is damaged or of
  // another model.
  Result<SlotResult> save_slot(int32_t slot, const std::string& file);
  Result<SlotResult> restore_slot(int32_t slot, const std::string& file);
  Result<SlotResult> erase_slot(int32_t slot);
  Result<SlotResult> fork_slot(int32_t slot);  // into the first slot that is empty, else the oldest idle one

  // The GPU failed: every request has ended with this error, and the process should end. ok: all is well.
  Status device_status() const;
  int64_t scratch_bytes() const;             // of steps, on a GPU

  void drain();                              // no new requests; what runs goes on
  bool drained() const;                      // nothing is running or waiting
  void reset_cache();                        // development
  EngineStats stats() const;                 // a copy of the last step's end
  const EngineOptions& options() const;      // as resolved
  const cache::CacheShape& cache_shape() const;
  std::vector<CapacityLine> capacity() const;
  const Model& model() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace k3
