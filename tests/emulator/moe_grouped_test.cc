// Grouped products of experts, as for Hopper, against double on the same weights: blocks of a small grid, or clusters of it,
// at once, with copies that land late and products that are computed late.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "k3/ops/moe/cuda/moe_grouped_config.h"
#include "k3/ops/moe/cuda/moe_grouped_cuda.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/moe_experts.h"

namespace k3::ops::cuda {
namespace {

using emulator::Experts;
using emulator::from_bf16;

struct Case {
  MoeWeights kind = MoeWeights::mxfp4;
  std::vector<int> rows = {};  // of each expert
  int width = 96, hidden = 64;
  MoeGlu glu = {true, 4, 25};
  bool places = false;
};

// One token a row; tokens of an expert lie scattered.
std::vector<int32_t> routing(const Case& c) {
  std::vector<int32_t> ids;
  std::vector<int> left = c.rows;
  const int tokens = std::accumulate(left.begin(), left.end(), 0);
  for (int t = 0; t < tokens; ++t) {
    size_t e = static_cast<size_t>(t * 7) % left.size();
    while (left[e] == 0) e = (e + 1) % left.size();
    --left[e];
    ids.push_back(static_cast<int32_t>(e));
  }
  return ids;
}

void check(const Case& c, uint32_t seed = 1, int multiprocessors = 4) {
  SCOPED_TRACE(fmt::format("width {}, hidden {}, rows {}, seed {}", c.width, c.hidden, c.rows.front(), seed));
  pretend_device({.sm_count = multiprocessors, .capability = 90});
  const auto experts = static_cast<int>(c.rows.size());
  const std::vector<int32_t> ids = routing(c);
  const auto tokens = ids.size(), width = static_cast<size_t>(c.width);
  Experts weights(c.kind, experts, c.width, c.hidden);
  const std::vector<uint16_t> z = emulator::random_bf16(tokens * width, seed);
  std::vector<uint16_t> rows((tokens + 1) * width, emulator::kNanBf16);
  std::vector<std::byte> workspace(
      static_cast<size_t>(moe_grouped_workspace_bytes(static_cast<int64_t>(tokens), 1, experts, c.width, c.hidden)) + 256,
      std::byte{0xFF});
  MoeGroupedCuda args;
  args.weights = c.places ? weights.scattered() : weights.view();
  args.glu = c.glu;
  args.z = z.data();
  args.z_stride = c.width;
  args.ids = ids.data();
  args.tokens = static_cast<int>(tokens);
  args.rows = rows.data();
  args.workspace = workspace.data() + (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256) % 256;
  emulator::set_options({.seed = seed, .late_products = true, .late_copies = true, .whole_grid = true});
  ASSERT_EQ(moe_grouped_cuda(args, nullptr).code, 0) << emulator::failure();

  size_t row = 0;
  emulator::Apart all;
  for (int e = 0; e < experts; ++e) {
    for (size_t t = 0; t < tokens; ++t) {
      if (ids[t] != e) continue;
      const std::vector<double> want = weights.result(e, z.data() + t * width, c.glu);
      emulator::Apart here;
      for (size_t i = 0; i < width; ++i)
        here.add(from_bf16(rows[row * width + i]), want[i]), all.add(from_bf16(rows[row * width + i]), want[i]);
      ASSERT_LE(here.ratio(), 1e-2) << fmt::format("expert {}, row {}", e, row);
      ++row;
    }
  }
  EXPECT_LE(all.ratio(), 4e-3);
  for (size_t i = row * width; i < rows.size(); ++i) ASSERT_EQ(rows[i], emulator::kNanBf16);
}

constexpr MoeWeights kMx = MoeWeights::mxfp4, kBf = MoeWeights::bf16;

TEST(MoeGroupedEmulated, RowsOfAnExpert) {
  for (const MoeWeights kind : {kMx, kBf}) {
    check({.kind = kind, .rows = {0, 1, 7, 0, 9, 33, 40}});
    check({.kind = kind, .rows = {0, 0, 130, 0}}, 2);
    check({.kind = kind, .rows = {1, 0, 5}, .glu = {false}, .places = true}, 3);
  }
}

// One step a tile: rings, announcements and mail go round from tile to tile.
TEST(MoeGroupedEmulated, ShortTiles) {
  for (uint32_t seed = 5; seed < 9; ++seed) {
    for (const MoeWeights kind : {kMx, kBf}) {
      check({.kind = kind, .rows = {1, 2, 1, 0, 1, 1, 3, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1}, .width = 64, .hidden = 32}, seed, 2);
    }
  }
}

// Rings go round several times within a tile, and tiles of weights are several and odd in number; with and without columns
// behind the last.
TEST(MoeGroupedEmulated, LongRings) {
  check({.kind = kMx, .rows = {17, 3, 60, 0, 1}, .width = 1056, .hidden = 288, .places = true}, 11, 3);
  check({.kind = kBf, .rows = {33, 3, 60, 0, 1}, .width = 528, .hidden = 328, .places = true}, 12, 4);
  for (uint32_t seed = 13; seed < 15; ++seed) {
    check({.kind = kMx, .rows = {40, 3, 20}, .width = 1024, .hidden = 256}, seed, 2);
    check({.kind = kBf, .rows = {70, 3, 20}, .width = 512, .hidden = 256}, seed, 2);
  }
}

// Tiles of 168 BF16 rows, which overlapping boxes bring: one of an expert (the blocks of a cluster share its rows), two
// (they share weights), three (both).
TEST(MoeGroupedEmulated, WidestTiles) {
  ASSERT_EQ(moe_grouped_width(kBf, (160 + 337 + 169) / 4.0), 168);
  check({.kind = kBf, .rows = {160, 337, 0, 169}, .width = 72, .hidden = 136, .glu = {true, 2.5F, 0}}, 21, 6);
  check({.kind = kMx, .rows = {128, 250, 0, 129}, .width = 96, .hidden = 160, .glu = {true, 2.5F, 0}}, 22, 6);
}

}  // namespace
}  // namespace k3::ops::cuda
