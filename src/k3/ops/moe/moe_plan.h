// Purpose:  who computes what in one moe call: slots grouped by expert, and their split over workers.
// Shapes:   a slot is one (token, j); slots [tokens * topk] in the order of tokens, positions in the order of experts.
//           With `wanted` (one byte an expert) only slots of wanted experts have positions.
// Units:    none.
// Memory:   vectors of the call, taken from the workspace (spans into it).
// Threads:  built by one thread, read by all.
// Errors:   K3_CHECK on ids.
// Source:   kernels.md 7 (row order: counting sort by expert).
#pragma once

#include <cstdint>
#include <span>

#include "k3/ops/ctx.h"

namespace k3::ops {

struct MoeGroup {
  int32_t expert = 0;
  int64_t begin = 0;  // positions [begin, end)
  int64_t end = 0;
};

struct MoePlan {
  std::span<MoeGroup> groups;      // experts with at least one slot, ascending
  std::span<int32_t> token_of;     // position -> token
  std::span<int32_t> position_of;  // slot -> position, -1 for slots of experts that are not wanted
  std::span<int32_t> slot_of;      // position -> slot
};

MoePlan moe_plan(Workspace& workspace, const Tensor& ids, int64_t experts, std::span<const uint8_t> wanted = {});

struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Rows of `group` that `worker` of `workers` computes, in whole blocks of `block` rows, such that all workers get about
// the same work over all groups. Blocks of group g cost its slots plus kMoeBlockCost (reading and decoding weights).
RowRange moe_rows_of(const MoePlan& plan, size_t group, int64_t rows, int64_t block, int64_t worker, int64_t workers);

}  // namespace k3::ops
