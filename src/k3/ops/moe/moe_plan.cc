#include "k3/ops/moe/moe_plan.h"

#include <algorithm>

#include "k3/base/check.h"

namespace k3::ops {
namespace {

// Reading and decoding a weight costs about as much as multiplying it with four tokens.
constexpr int64_t kMoeBlockCost = 4;

template <class T>
std::span<T> take(Workspace& workspace, int64_t count) {
  return {static_cast<T*>(workspace.bytes(count * static_cast<int64_t>(sizeof(T)))), static_cast<size_t>(count)};
}

}  // namespace

MoePlan moe_plan(Workspace& workspace, const Tensor& ids, int64_t experts, std::span<const uint8_t> wanted) {
  const int64_t topk = ids.dim(1), slots = ids.dim(0) * topk;
  const auto expert_of = [&](int64_t slot) {
    return static_cast<const int32_t*>(ids.data)[slot / topk * ids.stride(0) + slot % topk];
  };
  MoePlan plan;
  plan.position_of = take<int32_t>(workspace, slots);
  const std::span<int64_t> next = take<int64_t>(workspace, experts + 1);  // start of each expert, then its next position
  std::fill(next.begin(), next.end(), 0);
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int32_t e = expert_of(slot);
    K3_CHECK(e >= 0 && e < experts, "moe: expert {} of {}", e, experts);
    if (wanted.empty() || wanted[static_cast<size_t>(e)] != 0) ++next[static_cast<size_t>(e) + 1];
  }
  const int64_t active = experts + 1 - std::count(next.begin() + 1, next.end(), 0) - 1;
  plan.groups = take<MoeGroup>(workspace, active);
  size_t group = 0;
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
    const int64_t count = next[e + 1];
    next[e + 1] += next[e];
    if (count > 0) plan.groups[group++] = {static_cast<int32_t>(e), next[e], next[e + 1]};
  }
  plan.token_of = take<int32_t>(workspace, next.back());
  plan.slot_of = take<int32_t>(workspace, next.back());
  for (int64_t slot = 0; slot < slots; ++slot) {
    const auto e = static_cast<size_t>(expert_of(slot));
    if (!wanted.empty() && wanted[e] == 0) {
      plan.position_of[static_cast<size_t>(slot)] = -1;
      continue;
    }
    const int64_t position = next[e]++;
    plan.slot_of[static_cast<size_t>(position)] = static_cast<int32_t>(slot);
    plan.token_of[static_cast<size_t>(position)] = static_cast<int32_t>(slot / topk);
    plan.position_of[static_cast<size_t>(slot)] = static_cast<int32_t>(position);
  }
  return plan;
}

RowRange moe_rows_of(const MoePlan& plan, size_t group, int64_t rows, int64_t block, int64_t worker, int64_t workers) {
  // The blocks of all groups lie on one line, each as long as its cost; a worker owns those that start in its part.
  const int64_t blocks = (rows + block - 1) / block;
  const auto slots = static_cast<int64_t>(plan.token_of.size());
  const int64_t total = blocks * (slots + static_cast<int64_t>(plan.groups.size()) * kMoeBlockCost);
  const int64_t cost = plan.groups[group].end - plan.groups[group].begin + kMoeBlockCost;
  const int64_t start = blocks * (plan.groups[group].begin + static_cast<int64_t>(group) * kMoeBlockCost);
  const auto first_from = [&](int64_t point) {  // first block that starts at or after the point
    return std::clamp<int64_t>(point <= start ? 0 : (point - start + cost - 1) / cost, 0, blocks) * block;
  };
  return {std::min(rows, first_from(total * worker / workers)), std::min(rows, first_from(total * (worker + 1) / workers))};
}

}  // namespace k3::ops
