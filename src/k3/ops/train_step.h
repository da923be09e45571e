// Purpose:  what training on a GPU reads besides DeviceStep: Ctx::step is one of these when Ctx::training.
// Shapes:   as said at each.
// Units:    nats.
// Memory:   device memory; refers.
// Threads:  none.
// Errors:   none.
// Source:   the gradient of the embedding wants tokens by id, so that each row is one sum in one order.
#pragma once

#include "k3/ops/ctx.h"

namespace k3::ops {

struct TrainStep : DeviceStep {
  const int32_t* targets = nullptr;    // [T], -1: no loss
  const int32_t* by_id = nullptr;      // [T] tokens sorted by id, alike ones in their order
  const int32_t* id_starts = nullptr;  // [distinct + 1] into by_id
  const int32_t* ids = nullptr;        // [distinct]
  int64_t distinct = 0;
  double* nats = nullptr;              // [1] sum of losses, added to
};

inline const TrainStep& train_step(const Ctx& ctx) { return static_cast<const TrainStep&>(*ctx.step); }

}  // namespace k3::ops
