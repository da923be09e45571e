// The plan against a stable sort on the host.
#include <gtest/gtest.h>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/moe/cuda/moe_plan_cuda.h"

namespace k3::ops::cuda {
namespace {

struct PlanCase {
  int tokens, topk, experts, all_experts, first, tile_rows, count;  // count: tokens really there; -1: all
  bool one_expert = false;                                          // everybody chooses the same one first
};

std::vector<int32_t> random_ids(const PlanCase& c, uint64_t seed) {
  const Rng rng(seed, 9);
  std::vector<int32_t> ids;
  uint64_t draw = 0;
  for (int t = 0; t < c.tokens; ++t) {
    std::vector<int32_t> mine;
    if (c.one_expert) mine.push_back(c.first);
    while (static_cast<int>(mine.size()) < c.topk) {
      const auto e = static_cast<int32_t>(rng.uniform(draw++) * (c.all_experts + 1)) - 1;  // -1, too
      if (e == -1 || std::find(mine.begin(), mine.end(), e) == mine.end()) mine.push_back(e);
    }
    ids.insert(ids.end(), mine.begin(), mine.end());
  }
  return ids;
}

void check(const PlanCase& c, uint64_t seed) {
  SCOPED_TRACE(fmt::format("tokens {} top {} experts {} of {} from {} tiles of {} count {}", c.tokens, c.topk, c.experts,
                           c.all_experts, c.first, c.tile_rows, c.count));
  const std::vector<int32_t> ids = random_ids(c, seed);
  const int slots = c.tokens * c.topk, valid = (c.count < 0 ? c.tokens : c.count) * c.topk;
  std::vector<int32_t> offsets{0}, row_slot, slot_row(static_cast<size_t>(slots), -1);
  std::vector<MoeTile> tiles;
  for (int e = 0; e < c.experts; ++e) {
    for (int s = 0; s < valid; ++s) {
      if (ids[static_cast<size_t>(s)] != e + c.first) continue;
      slot_row[static_cast<size_t>(s)] = static_cast<int32_t>(row_slot.size());
      row_slot.push_back(s);
    }
    const auto end = static_cast<int32_t>(row_slot.size());
    for (int32_t row = offsets.back(); row < end; row += c.tile_rows)
      tiles.push_back({e, row, std::min(c.tile_rows, end - row), 0});
    offsets.push_back(end);
  }
  row_slot.resize(static_cast<size_t>(slots), -1);
  ASSERT_LE(static_cast<int64_t>(tiles.size()), moe_max_tiles(c.tokens, c.topk, c.experts, c.tile_rows));

  const DeviceArray<int32_t> d_ids(ids), d_count(std::vector<int32_t>{c.count}), d_offsets(c.experts + 1), d_row_slot(slots),
      d_slot_row(slots), d_tile_count(1), d_tiles(moe_max_tiles(c.tokens, c.topk, c.experts, c.tile_rows) * 4);
  const DeviceArray<uint8_t> workspace(moe_plan_workspace_bytes(c.tokens, c.experts));
  const MoePlanCuda plan{.ids = d_ids.data(),
                         .token_count = c.count < 0 ? nullptr : d_count.data(),
                         .tokens = c.tokens,
                         .topk = c.topk,
                         .experts = c.experts,
                         .first_expert = c.first,
                         .tile_rows = c.tile_rows,
                         .offsets = d_offsets.data(),
                         .row_slot = d_row_slot.data(),
                         .slot_row = d_slot_row.data(),
                         .tiles = reinterpret_cast<MoeTile*>(d_tiles.data()),
                         .tile_count = d_tile_count.data(),
                         .workspace = workspace.data()};
  ASSERT_EQ(moe_plan_cuda(plan, nullptr).code, 0);
  gpu_sync();
  EXPECT_EQ(d_offsets.get(), offsets);
  EXPECT_EQ(d_row_slot.get(), row_slot);
  EXPECT_EQ(d_slot_row.get(), slot_row);
  ASSERT_EQ(d_tile_count.get()[0], static_cast<int32_t>(tiles.size()));
  const std::vector<int32_t> got = d_tiles.get();
  for (size_t i = 0; i < tiles.size(); ++i) {
    ASSERT_EQ(
        (std::vector<int32_t>(got.begin() + static_cast<int64_t>(i) * 4, got.begin() + static_cast<int64_t>(i) * 4 + 4)),
        (std::vector<int32_t>{tiles[i].expert, tiles[i].row, tiles[i].rows, 0}))
        << "tile " << i;
  }
  for (const auto* a : {&d_offsets, &d_row_slot, &d_slot_row, &d_tile_count, &d_tiles}) EXPECT_TRUE(a->guards_intact());
  EXPECT_TRUE(workspace.guards_intact());
}

TEST(MoePlanCuda, SanitizeSmall) {
  K3_NEEDS_GPU();
  check({0, 2, 4, 4, 0, 8, -1}, 1);
  check({1, 1, 1, 1, 0, 1, -1}, 2);
  check({33, 3, 5, 9, 2, 4, -1}, 3);
  check({520, 2, 3, 8, 4, 16, 515}, 4);
}

TEST(MoePlanCuda, SortsLikeTheHost) {
  K3_NEEDS_GPU();
  check({31, 4, 16, 16, 0, 8, -1}, 1);
  check({32, 4, 16, 16, 0, 8, 0}, 2);
  check({128, 16, 896, 896, 0, 8, -1}, 3);
  check({128, 16, 112, 896, 336, 8, 77}, 4);
  check({512, 16, 896, 896, 0, 64, -1}, 5);
  check({513, 16, 896, 896, 0, 64, -1}, 6);
  check({3000, 8, 1024, 1024, 0, 128, 2999}, 7);
  check({1500, 3, 6, 6, 0, 16, -1, true}, 8);
  check({2048, 1, 1, 1, 0, 128, -1, true}, 9);
}

}  // namespace
}  // namespace k3::ops::cuda
