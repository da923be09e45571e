// Grouped products of routed experts against the double reference.
#include <gtest/gtest.h>

#include <numeric>

#include "k3/ops/moe/cuda/moe_experts_gpu_test.h"
#include "k3/ops/moe/cuda/moe_grouped_config.h"
#include "k3/ops/moe/cuda/moe_grouped_cuda.h"

namespace k3::ops::cuda {
namespace {

struct Problem {
  MoeWeights kind = MoeWeights::mxfp4;
  int tokens = 0, experts = 8, topk = 2, width = 256, hidden = 128;
  Glu glu = {GluKind::situ, 4.0F, 25.0F};
  std::vector<int> rows = {};  // of each expert, in that order; then topk is 1
  int first = 0, local = 0;    // local 0: all
  int count = -1;              // tokens really there
  int scale_low = 118, scale_high = 124;
  float input = 1;  // deviation of z
  int gap = 0;      // between rows of z
};

Routing routing_of(Problem& p, uint64_t seed) {
  if (p.rows.empty()) return random_routing(p.tokens, p.experts, p.topk, seed);
  p.experts = static_cast<int>(p.rows.size());
  p.tokens = std::accumulate(p.rows.begin(), p.rows.end(), 0);
  p.topk = 1;
  Routing r;
  std::vector<int> left = p.rows;
  const Rng rng(seed, 7);
  for (int t = 0; t < p.tokens; ++t) {  // tokens of an expert lie scattered
    auto e = static_cast<size_t>(rng.uniform(static_cast<uint64_t>(t)) * p.experts);
    while (left[e] == 0) e = (e + 1) % left.size();
    --left[e];
    r.ids.push_back(static_cast<int32_t>(e));
    r.weights.push_back(0.5F + static_cast<float>(t % 4) * 0.25F);
  }
  return r;
}

void check(Problem p, uint64_t seed = 1) {
  Routing routing = routing_of(p, seed + 200);
  const std::string name = name_of(p);
  SCOPED_TRACE(name);
  const int local = local_experts(p);
  const std::vector<FileWeight> files = file_weights(p, seed);
  const PackedExperts packed = pack_experts(p, files, p.first, local);
  std::vector<float> z = random_bf16(static_cast<int64_t>(p.tokens) * p.width, seed + 100, p.input);
  const std::vector<float> want = moe_reference(p, z, routing, files);

  const int64_t slots = static_cast<int64_t>(p.tokens) * p.topk, stride = p.width + p.gap,
                values = static_cast<int64_t>(p.tokens) * p.width;
  std::vector<uint16_t> z_bits(static_cast<size_t>(p.tokens * stride), 0x7FFF);  // NaN between the rows
  const std::vector<uint16_t> packed_z = to_bf16(z);
  for (int t = 0; t < p.tokens; ++t) {
    std::copy_n(packed_z.begin() + static_cast<int64_t>(t) * p.width, p.width, z_bits.begin() + t * stride);
  }
  const DeviceArray<uint16_t> d_z(z_bits), rows(slots * p.width), out(values), normed(values);
  const DeviceArray<int32_t> d_ids(routing.ids), d_count(std::vector<int32_t>{p.count});
  const DeviceArray<float> d_weights(routing.weights), sums(values);
  const DeviceArray<uint8_t> workspace(moe_grouped_workspace_bytes(p.tokens, p.topk, local, p.width, p.hidden));
  MoeGroupedCuda args;
  args.weights = packed.view;
  args.glu = moe_glu_of(p.glu);
  args.z = d_z.data(), args.z_stride = stride, args.ids = d_ids.data(),
  args.token_count = p.count < 0 ? nullptr : d_count.data();
  args.tokens = p.tokens, args.topk = p.topk, args.first_expert = p.first, args.rows = rows.data(),
  args.workspace = workspace.data();
  ASSERT_EQ(moe_grouped_cuda(args, nullptr).code, 0);
  const std::vector<float> gain = random_bf16(p.width, seed + 300);
  const DeviceArray<uint16_t> d_gain(to_bf16(gain));
  MoeGroupedSum sum;
  sum.weights = d_weights.data(), sum.out = out.data(), sum.out_f32 = sums.data();
  ASSERT_EQ(moe_grouped_combine_cuda(args, sum, nullptr).code, 0);
  sum.out = normed.data(), sum.norm_weight = d_gain.data();
  ASSERT_EQ(moe_grouped_combine_cuda(args, sum, nullptr).code, 0);
  gpu_sync();

  const int counted = p.count < 0 ? p.tokens : p.count;
  const auto used = static_cast<size_t>(counted) * static_cast<size_t>(p.width);
  const std::vector<float> got = from_bf16(out.get()), got_sums = sums.get(), got_normed = from_bf16(normed.get()),
                           got_rows = from_bf16(rows.get());
  for (size_t i = used; i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i])) << i;
  const auto ours = std::count_if(routing.ids.begin(), routing.ids.begin() + counted * p.topk,
                                  [&](int32_t e) { return e >= p.first && e < p.first + local; });
  for (auto r = static_cast<size_t>(ours); r < static_cast<size_t>(slots); ++r)
    ASSERT_TRUE(std::isnan(got_rows[r * static_cast<size_t>(p.width)])) << "row " << r;
  const std::span<const float> ref = std::span(want).first(used);
  const double error = norm_ratio(std::span<const float>(got).first(used), ref),
               before = norm_ratio(std::span<const float>(got_sums).first(used), ref);
  fmt::print("{}: {:.2e}, before rounding {:.2e}\n", name, error, before);
  EXPECT_LT(error, kMoeTolerance);
  if (!(error < kMoeTolerance)) {
    for (size_t i = 0, shown = 0; i < used && shown < 6; ++i) {
      if (std::abs(got_sums[i] - want[i]) <= 0.03F * std::abs(want[i]) + 3e-3F) continue;
      fmt::print("  wrong: token {} (expert {}) column {}: {} for {}\n", i / static_cast<size_t>(p.width),
                 routing.ids[i / static_cast<size_t>(p.width) * static_cast<size_t>(p.topk)],
                 i % static_cast<size_t>(p.width), got_sums[i], want[i]);
      ++shown;
    }
  }
  const std::vector<float> want_normed = normed_rows(std::span(got).first(used), gain, static_cast<double>(sum.eps));
  EXPECT_LT(norm_ratio(std::span<const float>(got_normed).first(used), std::span<const float>(want_normed)), 3e-3);
  EXPECT_TRUE(rows.guards_intact() && out.guards_intact() && normed.guards_intact() && sums.guards_intact() &&
              workspace.guards_intact());

  ASSERT_EQ(moe_grouped_products_cuda(args, nullptr).code, 0);  // again: the same bits, whatever order the work is taken in
  gpu_sync();
  const std::vector<uint16_t> again = rows.get();
  for (size_t i = 0; i < static_cast<size_t>(ours * p.width); ++i) ASSERT_EQ(again[i], float_to_bf16(got_rows[i])) << i;
}

constexpr MoeWeights kKinds[] = {MoeWeights::mxfp4, MoeWeights::bf16};

TEST(MoeGroupedCuda, ServesWhatTheKernelsTake) {
  DeviceInfo hopper;
  hopper.sm_count = 132, hopper.capability = 90;
  EXPECT_TRUE(moe_grouped_serves(MoeWeights::mxfp4, 896, 3584, 3072, hopper));
  EXPECT_TRUE(moe_grouped_serves(MoeWeights::bf16, 256, 2304, 1024, hopper));
  EXPECT_TRUE(moe_grouped_serves(MoeWeights::bf16, 1, 40, 24, hopper));
  EXPECT_FALSE(moe_grouped_serves(MoeWeights::mxfp4, 1, 40, 32, hopper));
  EXPECT_FALSE(moe_grouped_serves(MoeWeights::bf16, 1, 32, 20, hopper));
  EXPECT_FALSE(moe_grouped_serves(MoeWeights::mxfp4, 1025, 32, 32, hopper));
  hopper.capability = 80;
  EXPECT_FALSE(moe_grouped_serves(MoeWeights::mxfp4, 896, 3584, 3072, hopper));
  // Activations of the rows of 4,096 tokens of K3 and little else.
  const int64_t bytes = moe_grouped_workspace_bytes(4096, 16, 896, 3584, 3072), arrays = int64_t{65536} * 2 * (3584 + 3072);
  EXPECT_GE(bytes, arrays);
  EXPECT_LE(bytes, arrays + (1 << 20));
}

TEST(MoeGroupedCuda, SanitizeSmallest) {
  K3_NEEDS_GPU();
  check({.experts = 4, .width = 32, .hidden = 32});
  check({.tokens = 3, .experts = 4, .width = 32, .hidden = 32});
  check({.kind = MoeWeights::bf16, .tokens = 3, .experts = 5, .width = 40, .hidden = 24});
  check({.tokens = 9, .experts = 2, .width = 96, .hidden = 64, .gap = 8});
  check({.kind = MoeWeights::bf16, .tokens = 21, .experts = 3, .width = 136, .hidden = 40});
}

TEST(MoeGroupedCuda, RowsOfAnExpert) {
  K3_NEEDS_GPU();
  for (const MoeWeights kind : kKinds) {
    check({.kind = kind, .width = 96, .hidden = 64, .rows = {0, 1, 7, 8, 9, 63, 64, 65, 129, 0}});
    check({.kind = kind, .width = 96, .hidden = 64, .rows = {16, 17, 24, 25, 31, 33, 40, 41, 48, 49, 56, 57}}, 2);
    check({.kind = kind, .width = 96, .hidden = 64, .rows = {72, 73, 80, 81, 88, 89, 96, 97, 104}}, 3);
    check({.kind = kind, .width = 96, .hidden = 64, .rows = {105, 112, 113, 120, 121, 128, 130, 257}}, 4);
    check({.kind = kind, .width = 96, .hidden = 64, .rows = {0, 0, 700, 0}}, 5);
    check({.kind = kind, .width = 96, .hidden = 64, .rows = {136, 137, 144, 145, 152, 153, 160, 161, 167}}, 6);
    check({.kind = kind, .width = 96, .hidden = 64, .rows = {168, 169, 176, 177, 335, 336, 337, 338}}, 7);
  }
}

// Tiles of 168 BF16 rows, which overlapping boxes bring: one of an expert (the blocks of a cluster share its rows), two (they share
// weights), three (both).
TEST(MoeGroupedCuda, WidestTiles) {
  K3_NEEDS_GPU();
  const std::vector<int> rows = {150, 160, 161, 167, 168, 169, 170, 176, 177, 185, 192, 193, 200, 336, 337,
                                 0,   1,   80,  87,  88,  89,  95,  96,  97,  104, 146, 155, 164};
  const double average = std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(rows.size());
  ASSERT_EQ(moe_grouped_width(MoeWeights::bf16, average), 168);
  check({.kind = MoeWeights::bf16, .width = 96, .hidden = 64, .rows = rows}, 51);
  check({.kind = MoeWeights::bf16, .width = 528, .hidden = 328, .rows = rows}, 52);  // several tiles of weights, odd numbers of them
}

TEST(MoeGroupedCuda, Widths) {
  K3_NEEDS_GPU();
  for (const MoeWeights kind : kKinds) {
    for (const auto& [width, hidden] :
         {std::pair{32, 32}, {64, 96}, {96, 32}, {160, 544}, {288, 160}, {512, 1056}, {544, 256}, {1056, 288}}) {
      check({.kind = kind, .tokens = 50, .experts = 5, .width = width, .hidden = hidden, .gap = 16}, 11);
    }
  }
  for (const auto& [width, hidden] : {std::pair{8, 8}, {24, 264}, {264, 72}, {200, 136}, {776, 8}}) {
    check({.kind = MoeWeights::bf16, .tokens = 50, .experts = 5, .width = width, .hidden = hidden}, 12);
  }
}

TEST(MoeGroupedCuda, Routings) {
  K3_NEEDS_GPU();
  for (const MoeWeights kind : kKinds) {
    check({.kind = kind, .tokens = 200, .experts = 60, .topk = 8}, 21);
    check({.kind = kind, .tokens = 300, .experts = 9, .topk = 4, .glu = {GluKind::silu, 1.0F, {}}}, 22);
    check({.kind = kind, .tokens = 100, .experts = 24, .topk = 4, .glu = {GluKind::situ, 2.5F, {}}, .first = 8, .local = 9},
          23);
    check({.kind = kind, .tokens = 100, .experts = 24, .topk = 4, .glu = {GluKind::situ, 1.0F, 3.0F}, .count = 37}, 24);
    check({.kind = kind,
           .tokens = 600,
           .experts = 300,
           .topk = 16,
           .width = 32,
           .hidden = 32,
           .glu = {GluKind::situ, 4.0F, {}}},
          25);
  }
}

TEST(MoeGroupedCuda, WholeWidths) {
  K3_NEEDS_GPU();
  for (const MoeWeights kind : kKinds) {
    check({.kind = kind, .width = 3584, .hidden = 3072, .rows = {9}}, 31);
    check({.kind = kind, .width = 2304, .hidden = 1024, .glu = {GluKind::silu, 1.0F, {}}, .rows = {3, 9}}, 32);
  }
}

TEST(MoeGroupedCuda, ScalesAtTheEndsOfTheirRange) {
  K3_NEEDS_GPU();
  check({.tokens = 30, .experts = 4, .width = 288, .hidden = 96, .scale_low = 236, .scale_high = 242, .input = 0x1p-118F},
        41);
  check({.tokens = 30, .experts = 4, .width = 288, .hidden = 96, .scale_low = 1, .scale_high = 6, .input = 0x1p118F}, 42);
  check({.tokens = 30, .experts = 9, .width = 288, .hidden = 96, .scale_low = 0, .scale_high = 252, .input = 0x1p-110F}, 43);
}

}  // namespace
}  // namespace k3::ops::cuda
