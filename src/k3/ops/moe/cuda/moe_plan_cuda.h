// Purpose:  on the device: slots grouped by expert and a list of tiles, for every expert kernel; nothing is read back.
// Shapes:   ids [T, topk] i32; a slot is token * topk + j; rows are slots sorted by expert, ties by slot.
//           E <= 1024 local experts; offsets [E + 1]; row_slot, slot_row [T * topk]; tiles [moe_max_tiles]; tile_count [1];
//           all i32.
// Units:    none.
// Memory:   all outputs are overwritten: row_slot beyond the last row and slot_row of dropped slots are -1. Workspace:
//           moe_plan_workspace_bytes, need not be cleared, may be reused after the call. Nothing is allocated.
// Threads:  one call per workspace at a time.
// Errors:   K3_CHECK on sizes; CudaStatus of the launch. T = 0 is legal: all offsets and tile_count are 0.
// Source:   kernels.md 7 (counting sort by expert on the device). Exact. The ids of one token are distinct (a router's are).
#pragma once

#include <cstdint>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/moe/cuda/moe_stream_types.h"

namespace k3::ops::cuda {

// More tiles than these cannot come about, whatever the ids.
constexpr int64_t moe_max_tiles(int64_t tokens, int64_t topk, int64_t experts, int64_t tile_rows) {
  const int64_t slots = tokens * topk, used = slots < experts ? slots : experts;
  return used + (slots - used) / tile_rows;
}
constexpr int64_t moe_plan_workspace_bytes(int64_t tokens, int64_t experts) {
  const int64_t blocks = (tokens + kMoePlanTokens - 1) / kMoePlanTokens;
  return blocks <= 1 ? 0 : blocks * experts * 4;
}

CudaStatus moe_plan_cuda(const MoePlanCuda& plan, Stream stream);

}  // namespace k3::ops::cuda
