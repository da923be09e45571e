// Absorbed decode and verify against double on the same BF16 queries and latents.
#include <gtest/gtest.h>

#include <cstddef>

#include "k3/ops/mla/cuda/mla_config.h"
#include "k3/ops/mla/cuda/mla_gpu_cases.h"
#include "k3/ops/mla/cuda/mla_launch.cuh"

namespace k3::ops::cuda {
namespace {

struct Case {
  int64_t heads = 12, tokens = 1;  // tokens of a request, the most of them when `counts` is given
  PagedCase paged;
  std::vector<int> counts = {};  // query tokens a request
  float query_scale = 1, growth = 0;
  bool f32 = false;
};

enum class Path { dispatched, any };

void check(const Case& c, Path path = Path::dispatched, uint64_t seed = 1) {
  SCOPED_TRACE(fmt::format("H={} T={} B={} first length {} page {} scale {}", c.heads, c.tokens, c.paged.lengths.size(),
                           c.paged.lengths.empty() ? 0 : c.paged.lengths[0], c.paged.page_tokens, c.query_scale));
  const PagedData data(c.paged, seed, c.growth);
  std::vector<int32_t> offsets{0};
  for (size_t s = 0; s < c.paged.lengths.size(); ++s)
    offsets.push_back(offsets.back() + (c.counts.empty() ? static_cast<int>(c.tokens) : c.counts[s]));
  const int64_t rows = offsets.back() * c.heads;
  const std::vector<float> query = random_bf16(rows * kRow, seed + 9, c.query_scale);
  const DeviceArray<uint16_t> query_d(to_bf16(query));
  const DeviceArray<int32_t> offsets_d(offsets);
  const DeviceArray<uint16_t> ol(rows * kRank);
  const DeviceArray<float> ol_f32(rows * kRank), lse(rows);
  const MlaDecodeConfig config = mla_decode_config(c.heads, c.tokens, device_info());
  const DeviceArray<uint8_t> workspace(mla_decode_workspace_bytes(config));
  MlaDecode args{.query = query_d.data(),
                 .lengths = data.lengths(),
                 .offsets = c.counts.empty() ? nullptr : offsets_d.data(),
                 .batch = data.requests(),
                 .heads = c.heads,
                 .max_query_tokens = c.tokens,
                 .query_tokens = offsets.back(),
                 .pages = data.pages(),
                 .ol = c.f32 ? static_cast<void*>(ol_f32.data()) : ol.data(),
                 .ol_f32 = c.f32,
                 .lse = lse.data(),
                 .workspace = workspace.data()};
  for (int repeat = 0; repeat < 2; ++repeat) {  // again over the rests of the first in the workspace
    const int code = path == Path::any ? mla_decode_any_launch(args, nullptr) : mla_decode_cuda(args, nullptr).code;
    ASSERT_EQ(code, 0);
  }
  gpu_sync();
  std::vector<float> expected(static_cast<size_t>(rows * kRank));
  std::vector<double> expected_lse(static_cast<size_t>(rows));
  for (size_t s = 0; s < c.paged.lengths.size(); ++s) {
    const int count = offsets[s + 1] - offsets[s];
    const std::vector<float>& latents = data.rows(s);
    parallel_rows(count * c.heads, [&](int64_t i) {
      const int64_t row = offsets[s] * c.heads + i, visible = data.length(s) - count + i / c.heads + 1;
      const auto at = [&](int64_t j, int64_t k) { return latents[static_cast<size_t>(j * kRow + k)]; };
      expected_lse[static_cast<size_t>(row)] =
          attend_ref(query.data() + row * kRow, kRow, visible, kRank, at, at, expected.data() + row * kRank);
    });
  }
  const std::vector<float> got = c.f32 ? ol_f32.get() : from_bf16(ol.get()), got_lse = lse.get();
  const double ratio = norm_ratio(got, expected);
  EXPECT_LE(ratio, 3e-3);
  int shown = 0;
  double worst = 0, worst_lse = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<const float> mine(got.data() + row * kRank, kRank), other(expected.data() + row * kRank, kRank);
    const double here = norm_ratio(mine, other);
    const double reference = expected_lse[static_cast<size_t>(row)],
                 value = static_cast<double>(got_lse[static_cast<size_t>(row)]);
    const double apart = std::isinf(reference) ? (value == reference ? 0 : INFINITY) : std::abs(value - reference);
    worst = std::max(worst, here);
    worst_lse = std::max(worst_lse, apart);
    if (!(here <= 1e-2 && apart <= 1e-4) && shown++ < 4) {
      size_t first = 0;
      while (first + 1 < mine.size() && std::abs(mine[first] - other[first]) <= 0.02F * std::abs(other[first]) + 1e-3F)
        ++first;
      ADD_FAILURE() << fmt::format(
          "row {} (token {}, head {}): ratio {:.3e}, first wrong latent {}: {} for {}; lse {} for {}", row, row / c.heads,
          row % c.heads, here, first, mine[first], other[first], value, reference);
    }
  }
  if (std::getenv("K3_SHOW") != nullptr) {
    fmt::print("decode H={} T={} B={} len {} page {}: out {:.2e} (worst row {:.2e}), lse {:.1e}\n", c.heads, c.tokens,
               c.paged.lengths.size(), c.paged.lengths[0], c.paged.page_tokens, ratio, worst, worst_lse);
  }
  EXPECT_TRUE(ol.guards_intact() && ol_f32.guards_intact() && lse.guards_intact() && workspace.guards_intact() &&
              data.guards_intact());
}

TEST(MlaDecodeGpu, SanitizeSmallestTails) {
  K3_NEEDS_GPU();
  check({.heads = 12, .paged = {.lengths = {1, 65}}});
  check({.heads = 96, .paged = {.lengths = {70}}});
}

TEST(MlaDecodeGpu, EveryHeadCount) {
  K3_NEEDS_GPU();
  for (const int64_t heads : {1, 4, 8, 12, 16, 24, 32, 64, 96})
    check({.heads = heads, .paged = {.lengths = {65, 1000, 63}}});
}

TEST(MlaDecodeGpu, EveryWindow) {
  K3_NEEDS_GPU();
  for (int64_t tokens = 1; tokens <= 8; ++tokens)
    check({.heads = 12, .tokens = tokens, .paged = {.lengths = {1, 64, 300, 8}}});
  check({.heads = 96, .tokens = 2, .paged = {.lengths = {129, 500}}});
  check({.heads = 96, .tokens = 3, .paged = {.lengths = {2, 200}}});
  check({.heads = 32, .tokens = 7, .paged = {.lengths = {66, 500}}});
}

TEST(MlaDecodeGpu, LengthsAndSplits) {
  K3_NEEDS_GPU();
  for (const int length : {1, 63, 64, 65, 1000, 5000}) check({.heads = 16, .paged = {.lengths = {length}}});
  check({.heads = 96, .paged = {.lengths = {5000}}});
  check({.heads = 96, .paged = {.lengths = {1, 5000, 64, 300, 2500, 0, 65, 7, 12000}}});
  check({.heads = 12, .tokens = 8, .paged = {.lengths = {9, 5000, 64, 300, 2500, 65, 12000}}});
  check({.heads = 12, .tokens = 8, .paged = {.lengths = {5000, 1, 700}}});
  std::vector<int> many;
  const Rng rng(5, 5);
  for (uint64_t i = 0; i < 300; ++i) many.push_back(static_cast<int>(rng.bits(i) % 150));
  check({.heads = 4, .paged = {.lengths = many}});
  many.resize(40);
  many[7] = 9000;
  check({.heads = 12, .paged = {.lengths = many}});
}

TEST(MlaDecodeGpu, PackedWindowsOfDifferentLength) {
  K3_NEEDS_GPU();
  check({.heads = 12, .tokens = 5, .paged = {.lengths = {70, 300, 0, 64, 900}}, .counts = {3, 0, 1, 5, 2}});
  check({.heads = 48, .tokens = 4, .paged = {.lengths = {70, 300, 10}}, .counts = {1, 4, 2}});
}

TEST(MlaDecodeGpu, PageShapes) {
  K3_NEEDS_GPU();
  for (const int64_t page : {16, 32, 48, 64, 128, 192}) {
    check({.heads = 12, .paged = {.lengths = {200, 31, 1000}, .page_tokens = page, .row_gap = 64, .page_gap = 24}});
    check({.heads = 96, .paged = {.lengths = {200, 31}, .page_tokens = page, .row_gap = 8, .page_gap = 0}});
  }
}

TEST(MlaDecodeGpu, SharpAndRisingScores) {
  K3_NEEDS_GPU();
  check({.heads = 12, .paged = {.lengths = {1000, 130}}, .query_scale = 8});
  check({.heads = 12, .tokens = 3, .paged = {.lengths = {4000}}, .query_scale = 2, .growth = 0.001F});
  check({.heads = 96, .paged = {.lengths = {2000}}, .query_scale = 2, .growth = 0.001F});
}

TEST(MlaDecodeGpu, OutputInF32) {
  K3_NEEDS_GPU();
  check({.heads = 12, .paged = {.lengths = {100, 3000}}, .f32 = true});
}

TEST(MlaDecodeGpu, SanitizePathOfOtherDevices) {
  K3_NEEDS_GPU();
  check({.heads = 12, .tokens = 2, .paged = {.lengths = {1, 65, 300}, .page_tokens = 48}, .counts = {2, 0, 1}}, Path::any);
  check({.heads = 4, .paged = {.lengths = {100}}, .f32 = true}, Path::any);
}

}  // namespace
}  // namespace k3::ops::cuda
