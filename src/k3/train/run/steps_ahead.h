// Purpose:  how far a run queues work on a GPU before it reads what came of it.
// Shapes:   none.
// Units:    steps.
// Memory:   none.
// Threads:  none.
// Errors:   none.
// Source:   one step runs, the next is queued behind it: then the GPU waits for the host only if queueing takes longer than a step.
#pragma once

#include <cstdint>

namespace k3::train {

constexpr int64_t kStepsAhead = 2;

}  // namespace k3::train
