// Dense products of up to 128 tokens, as for Hopper, against double on the same BF16 numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "k3/ops/gemm/cuda/gemm_rows.cuh"
#include "tests/emulator/emulator.h"
#include "tests/emulator/numbers.h"

namespace k3::ops::cuda {
namespace {

using emulator::from_bf16;

struct Case {
  int tokens = 1, in = 64;
  std::vector<int> rows = {};  // of each part; every second one is FP32 and added to
  int tiles = 1, cluster_log2 = 0;
};

void check(const Case& c, uint32_t seed) {
  SCOPED_TRACE(fmt::format("{} tokens, {} columns, {} tiles, cluster {}, seed {}", c.tokens, c.in, c.tiles,
                           1 << c.cluster_log2, seed));
  const auto tokens = static_cast<size_t>(c.tokens), in = static_cast<size_t>(c.in), stride = in + 8;
  const std::vector<uint16_t> x = emulator::random_bf16(tokens * stride, seed);
  std::vector<std::vector<uint16_t>> w, y;
  std::vector<std::vector<float>> sums;
  Rows p;
  for (size_t i = 0; i < c.rows.size(); ++i) {
    const auto rows = static_cast<size_t>(c.rows[i]);
    w.push_back(emulator::random_bf16(rows * in, seed + 1 + i));
    y.emplace_back(tokens * rows, emulator::kNanBf16);
    sums.emplace_back(tokens * rows, 0.5F);
  }
  for (size_t i = 0; i < c.rows.size(); ++i) {
    const bool f32 = i % 2 == 1;
    p.parts[i] = {.w = reinterpret_cast<const uint8_t*>(w[i].data()),
                  .y = f32 ? static_cast<void*>(sums[i].data()) : y[i].data(),
                  .y_stride = c.rows[i],
                  .row_begin = p.rows,
                  .y_f32 = f32,
                  .accumulate = f32};
    p.rows += c.rows[i];
  }
  p.part_count = static_cast<int>(c.rows.size());
  p.x = x.data();
  p.x_stride = static_cast<int64_t>(stride);
  p.tokens = c.tokens;
  p.in = c.in;
  p.tiles = c.tiles;
  p.base_height = p.rows / c.tiles;
  p.higher = p.rows % c.tiles;
  p.cluster_log2 = c.cluster_log2;
  emulator::set_options({.seed = seed, .late_products = true, .late_copies = true});
  ASSERT_EQ(gemm_wide_launch(p, false, nullptr), 0) << emulator::failure();
  for (size_t i = 0; i < c.rows.size(); ++i) {
    emulator::Apart part;
    for (size_t at = 0; at < y[i].size(); ++at) {
      const size_t t = at / static_cast<size_t>(c.rows[i]), r = at % static_cast<size_t>(c.rows[i]);
      double want = i % 2 == 1 ? 0.5 : 0;
      for (size_t k = 0; k < in; ++k) want += from_bf16(x[t * stride + k]) * from_bf16(w[i][r * in + k]);
      part.add(i % 2 == 1 ? static_cast<double>(sums[i][at]) : from_bf16(y[i][at]), want);
    }
    EXPECT_LE(part.ratio(), i % 2 == 1 ? 1e-5 : 3e-3) << "part " << i;
  }
}

TEST(GemmWideEmulated, TokensAndClusters) {
  check({.tokens = 17, .in = 832, .rows = {70, 30}, .tiles = 1}, 1);
  check({.tokens = 9, .in = 448, .rows = {40, 41, 7}, .tiles = 3, .cluster_log2 = 1}, 2);
  check({.tokens = 64, .in = 640, .rows = {128, 9}, .tiles = 2, .cluster_log2 = 1}, 3);
  check({.tokens = 100, .in = 1088, .rows = {50}, .tiles = 1, .cluster_log2 = 2}, 4);
  check({.tokens = 33, .in = 64, .rows = {5, 3}, .tiles = 1}, 5);
}

}  // namespace
}  // namespace k3::ops::cuda
