// Every tile of every request belongs to exactly one worker, and both sides of a split agree on whose parts there are.
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "k3/base/rng.h"
#include "k3/ops/mla/cuda/mla_config.h"
#include "k3/ops/mla/cuda/mla_parts.h"
#include "k3/ops/mla/cuda/mla_split.h"

namespace k3::ops::cuda {
namespace {

struct Batch {
  std::vector<int> at, tiles;
  int total = 0;
};

Batch make_batch(const std::vector<int>& lengths) {
  Batch b;
  for (const int n : lengths) {
    b.at.push_back(b.total);
    b.tiles.push_back(mla_tiles(n));
    b.total += b.tiles.back() + kMlaOverhead;
  }
  return b;
}

void check(const std::vector<int>& lengths, int workers, int min_tiles) {
  const Batch b = make_batch(lengths);
  const int share = mla_share(b.total, workers, min_tiles);
  std::vector<int> slots(static_cast<size_t>(2 * workers), 0);
  for (size_t r = 0; r < lengths.size(); ++r) {
    int next = 0;
    const int first = mla_first_worker(b.at[r], share), last = mla_last_worker(b.at[r], b.tiles[r], share);
    ASSERT_LT(last, workers);
    for (int g = 0; g < workers; ++g) {
      const MlaSegment s = mla_segment(b.at[r], b.tiles[r], g * share, std::min((g + 1) * share, b.total));
      ASSERT_EQ(s.begin < s.end, g >= first && g <= last) << g;
      if (s.begin == s.end) continue;
      ASSERT_EQ(s.begin, next);
      next = s.end;
      const bool whole = s.begin == 0 && s.end == b.tiles[r];
      if (!whole) ++slots[static_cast<size_t>(mla_part_slot(g, s.begin == 0))];
    }
    ASSERT_EQ(next, b.tiles[r]);
  }
  for (const int uses : slots) ASSERT_LE(uses, 1);
}

TEST(MlaSplit, EveryTileHasOneWorker) {
  const k3::Rng rng(1, 1);
  uint64_t n = 0;
  for (const int workers : {1, 2, 66, 132}) {
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<int> lengths(1 + rng.bits(n++) % 40);
      for (int& x : lengths) x = static_cast<int>(rng.bits(n++) % (trial % 3 == 0 ? 100000 : 300));
      check(lengths, workers, 1 + trial % 3);
    }
  }
}

TEST(MlaSplit, OneLongRequestIsDividedEvenly) {
  const int tiles = mla_tiles(1 << 20), share = mla_share(tiles + kMlaOverhead, 132, 1);
  EXPECT_EQ(tiles, 16384);
  EXPECT_EQ(share, (16386 + 131) / 132);
  check({1 << 20}, 132, 1);
}

TEST(MlaSplit, ShortRequestsAreNotSplitBelowTheLeastShare) {
  EXPECT_EQ(mla_share(mla_tiles(128) + kMlaOverhead, 132, 2), 2 + kMlaOverhead);
  check({128}, 132, 2);
}

TEST(MlaSplit, AnEmptyRequestHasATile) {
  EXPECT_EQ(mla_tiles(0), 1);
  EXPECT_EQ(mla_tiles(1), 1);
  EXPECT_EQ(mla_tiles(64), 1);
  EXPECT_EQ(mla_tiles(65), 2);
}

DeviceInfo hopper() {
  DeviceInfo d;
  d.sm_count = 132;
  d.capability = 90;
  d.shared_bytes_per_block = 232448;
  d.l2_bytes = int64_t{50} << 20;
  return d;
}

TEST(MlaConfig, RowsFillTheirTile) {
  for (const auto& [heads, tokens, tile, pair, tiles] : {std::tuple{1, 1, 16, 1, 1},
                                                         {12, 1, 16, 1, 1},
                                                         {16, 1, 16, 1, 1},
                                                         {24, 1, 32, 1, 1},
                                                         {12, 4, 48, 1, 1},
                                                         {64, 1, 64, 1, 1},
                                                         {96, 1, 96, 1, 1},
                                                         {12, 8, 96, 1, 1},
                                                         {64, 2, 64, 2, 1},
                                                         {96, 8, 64, 2, 6}}) {
    const MlaDecodeConfig c = mla_decode_config(heads, tokens, hopper());
    EXPECT_EQ(c.row_tile, tile) << heads << " " << tokens;
    EXPECT_EQ(c.pair, pair) << heads << " " << tokens;
    EXPECT_EQ(c.row_tiles, tiles) << heads << " " << tokens;
  }
}

TEST(MlaConfig, EveryRowHasATile) {
  for (int heads = 1; heads <= 128; ++heads) {
    for (int tokens = 1; tokens <= 8; ++tokens) {
      const MlaDecodeConfig c = mla_decode_config(heads, tokens, hopper());
      ASSERT_GE(c.row_tile * c.pair * c.row_tiles, heads * tokens);
      ASSERT_LT(c.row_tile * c.pair * (c.row_tiles - 1), heads * tokens);
      ASSERT_EQ(c.workers, 132 / (c.halves ? 2 : c.pair));
      ASSERT_LE(c.workers * c.pair, kMlaMaxBlocks);
    }
  }
}

TEST(MlaFused, EveryTileHasOneBlock) {
  for (const int blocks : {1, 7, 114, 132}) {
    for (int tiles = 1; tiles <= 3000; tiles += 1 + tiles / 40) {
      const int share = mla_fused_share(tiles, blocks);
      ASSERT_GE(share * blocks, tiles) << tiles << " " << blocks;
      ASSERT_LE(share, std::max(2, (tiles + blocks - 1) / blocks));
    }
  }
  EXPECT_EQ(mla_fused_share(64, 132), 1);
  EXPECT_EQ(mla_fused_share(65, 132), 2);
  EXPECT_EQ(mla_fused_share(512, 132), 4);
}

TEST(MlaFused, ForOneSequenceOfUpTo32Rows) {
  for (const auto& [heads, tokens, tile, units] : {std::tuple{12, 1, 16, 1}, {16, 1, 16, 1}, {12, 2, 32, 1}, {17, 1, 32, 2}, {32, 1, 32, 2}, {4, 8, 32, 1}}) {
    const MlaFusedConfig c = mla_fused_config(heads, tokens, 1, hopper());
    EXPECT_TRUE(c.usable) << heads << " " << tokens;
    EXPECT_EQ(c.row_tile, tile);
    EXPECT_EQ(c.units, units);
    EXPECT_GE(c.units * c.blocks, 8 * heads);
  }
  EXPECT_FALSE(mla_fused_config(33, 1, 1, hopper()).usable);
  EXPECT_FALSE(mla_fused_config(12, 3, 1, hopper()).usable);
  EXPECT_FALSE(mla_fused_config(1, 9, 1, hopper()).usable);
  EXPECT_FALSE(mla_fused_config(12, 1, 2, hopper()).usable);
  DeviceInfo d = hopper();
  d.sm_count = 100;  // the keys of 32 heads do not fit beside each other
  EXPECT_FALSE(mla_fused_config(32, 1, 1, d).usable);
  d.sm_count = 114;  // those of 16 in the place of a query of 32 rows
  EXPECT_EQ(mla_fused_config(16, 1, 1, d).row_tile, 32);
  d.capability = 80;
  EXPECT_FALSE(mla_fused_config(12, 1, 1, d).usable);
}

TEST(MlaConfig, OtherDevicesTakeThePlainPath) {
  DeviceInfo d = hopper();
  d.capability = 80;
  EXPECT_FALSE(mla_decode_config(96, 1, d).hopper);
  d.capability = 100;
  EXPECT_FALSE(mla_decode_config(96, 1, d).hopper);
  EXPECT_FALSE(mla_decode_config(96, 1, DeviceInfo{}).hopper);
}

TEST(MlaConfig, PartsOfThePrefillAreBoundedAndEqual) {
  for (const int64_t heads : {1, 4, 12, 16, 32, 64, 96, 128}) {
    const int64_t most = mla_part_keys(heads);
    EXPECT_LE(2 * most * (576 + 256 * heads), kMlaPartBytes);
    EXPECT_EQ(most % 128, 0);
    EXPECT_LE(mla_measured_keys(heads), most);
    for (const int64_t keys : {int64_t{1}, most - 1, most, most + 1, 2 * most, 2 * most + 1, int64_t{1} << 20}) {
      const int64_t part = mla_part_of(keys, heads), parts = (keys + part - 1) / part;
      EXPECT_LE(part, most);
      EXPECT_EQ(parts, (keys + most - 1) / most) << heads << " " << keys;  // no more than have to be
      if (keys <= most) {
        EXPECT_EQ(part, keys);
      }
    }
  }
  EXPECT_GT(mla_part_keys(96), 8192);  // a usual prompt is one part
}

TEST(MlaConfig, HeadsOfAPrefillGroupFitIntoL2) {
  EXPECT_EQ(mla_prefill_head_group(96, 8192, hopper()), 6);
  EXPECT_EQ(mla_prefill_head_group(12, 128, hopper()), 12);
  EXPECT_EQ(mla_prefill_head_group(96, 1 << 20, hopper()), 1);
}

}  // namespace
}  // namespace k3::ops::cuda
