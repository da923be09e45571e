// Purpose:  a whole simulation: requests to replicas, replicas on threads, failures between them, results.
// Shapes:   none.
// Units:    seconds, tokens.
// Memory:   all engines and one record a request.
// Threads:  uses scenario.threads; results do not depend on their number.
// Errors:   those of validate; exhausted or invalid_argument from the caches.
// Source:   serving.md 9: a session has a primary replica and, should that fail, a second one that is as good as drawn anew
//           (rendezvous hashing); caches are never moved.
#pragma once

#include <functional>

#include "k3/plan/sim/sim_result.h"

namespace k3::plan {

Result<SimResult> simulate(const SimScenario& scenario, const Workload& workload,
                           const std::function<void(double share)>& progress = {});

// Which requests belong together for routing: a session; of requests without one, those that repeat at least half of the
// pieces of an earlier one.
std::vector<uint64_t> affinity_of(const Workload& workload);

}  // namespace k3::plan
