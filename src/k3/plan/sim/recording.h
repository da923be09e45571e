// Purpose:  when the requests of a recorded run started, had their first token and ended.
// Shapes:   one entry a request of the workload.
// Units:    seconds since the start of that run.
// Memory:   the tree of the file while it is read.
// Threads:  pure function.
// Errors:   invalid_argument naming the entry and field; also for a request that the workload does not have, or has with
// another length. Source:   docs/loadgen.md: "requests" of the JSON of k3 loadgen.
#pragma once

#include <string_view>
#include <vector>

#include "k3/plan/sim/sim_scenario.h"
#include "k3/plan/sim/workload.h"

namespace k3::plan {

Result<std::vector<RecordedRequest>> parse_recording(std::string_view json, const Workload& workload);

}  // namespace k3::plan
