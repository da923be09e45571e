// Purpose:  everything that a simulation is told besides its requests.
// Shapes:   none.
// Units:    bytes, tokens, seconds.
// Memory:   plain values; clocks are shared and immutable.
// Threads:  immutable by use.
// Errors:   validate: invalid_argument, naming the setting.
// Source:   serving.md 3, 4, 9; docs/simulator.md.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "k3/cache/hybrid_cache.h"
#include "k3/engine/core.h"
#include "k3/plan/sim/sim_executor.h"
#include "k3/plan/sim/step_clock.h"

namespace k3::plan {

// One engine: the accelerators that one scheduler and one pool stand for.
struct EngineSettings {
  cache::CacheShape shape;  // of one rank's part
  int64_t ranks = 1;        // that hold a part each of every page
  int64_t pool_bytes = 0;   // of one rank's part
  cache::CheckpointPolicy policy;
  bool prefix_cache = true;
  CoreOptions core;
  int64_t queue = 64;  // requests that wait in the engine; the others wait before it
  // Tiers behind the pool, in pages of the shape too, and what they give in a second. Writing to them costs no time.
  int64_t host_bytes = 0, remote_bytes = 0;
  double host_bytes_per_second = 0, remote_bytes_per_second = 0, remote_seconds = 0;  // the last: of each fetch
  std::shared_ptr<const StepClock> clock;
};

// Requests of at most so many prompt tokens, and how many seconds of their prefill may be under way at once. One always may.
struct BudgetClass {
  int64_t most_tokens = 0;
  double seconds = 0;
};

struct Failure {
  int32_t replica = 0;
  double at_seconds = 0;
  double repair_seconds = std::numeric_limits<double>::infinity();
};

// Who starts when. trace: by the trace's clock. sequential: one at a time in the order of the file. users: each of N takes the next
// session (or lone request) when it is done with one. poisson: sessions and lone requests arrive at random. recorded: at recorded
// times. recorded_order: by recorded events alone: a request starts once what had happened before it has happened.
enum class SimPacing { trace, sequential, users, poisson, recorded, recorded_order };

// Of a recorded run; seconds since its start, -1: did not happen.
struct RecordedRequest {
  double start_seconds = -1, first_token_seconds = -1, end_seconds = -1;
};

enum class Routing { affinity, round_robin };

struct SimScenario {
  std::string name;
  EngineSettings engine;  // with prefill_engines: those that prefill
  EngineSettings decode;  // used when there are prefill_engines
  int32_t replicas = 1;
  int32_t prefill_engines = 0, decode_engines = 0;  // of a replica; 0: one engine does both
  double transfer_bytes_per_second = 0, transfer_seconds = 0;  // of one prefill engine's link; latency
  double state_bytes = 0, latent_bytes_per_token = 0;          // what is transferred

  SimPacing pacing = SimPacing::trace;
  double speed = 1;  // of the trace's clock and of think times
  int64_t users = 1;
  double think_seconds = 0;  // users: where the workload tells none
  double rate_per_second = 1;
  double duration_seconds = 0;  // no request starts later; 0: all start
  std::vector<RecordedRequest> recorded;

  double request_seconds = 0;  // from a request's arrival to the engine's queue (HTTP, tokenizer)
  Routing routing = Routing::affinity;
  std::vector<BudgetClass> budgets;  // ascending; empty: no budgets
  std::vector<Failure> failures;
  Acceptance acceptance;
  double slo_ttft_seconds = 0, slo_tpot_seconds = 0;  // 0: no objective

  uint64_t seed = 0;
  int threads = 1;
  bool repeats = true;  // steps that cannot differ are computed together; off: for tests
};

Status validate(const SimScenario& scenario);

}  // namespace k3::plan
