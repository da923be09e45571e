// What the stream kernel does besides: a gate and an up matrix with the activation behind them, and two inputs in one launch.
#include <gtest/gtest.h>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/gemm/cuda/gemm_cuda.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/gemm/linear_cases.h"

namespace k3::ops::cuda {
namespace {

constexpr double kOneRounding = 3e-3;  // norm ratio of BF16 outputs

struct Matrix {
  OwnedWeight host;
  DeviceArray<uint8_t> data;
  Matrix(int64_t rows, int64_t cols, uint64_t seed) : host(random_weight(Scheme::bf16, rows, cols, seed)), data(host.data) {}
  Weight device() const { return {data.data(), nullptr, Scheme::bf16, host.rows, host.cols}; }
  std::vector<float> product(std::vector<float>& x, int64_t tokens) const {
    std::vector<float> y(static_cast<size_t>(tokens * host.rows));
    linear_ref(matrix(x.data(), tokens, host.cols), host.view(), matrix(y.data(), tokens, host.rows), false);
    return y;
  }
};

struct Case {
  int64_t tokens, in, pairs;
  Glu glu;
};

// A pair between two parts without one, as routers and latents surround it.
void check_pair(const Case& c) {
  SCOPED_TRACE(fmt::format("T {} I {} pairs {} situ {}", c.tokens, c.in, c.pairs, c.glu.kind == GluKind::situ));
  std::vector<float> x = random_bf16(c.tokens * c.in, 1);
  const Matrix before(18, c.in, 2), gate(c.pairs, c.in, 3), up(c.pairs, c.in, 4), after(40, c.in, 5);
  const DeviceArray<uint16_t> d_x(to_bf16(x)), y(c.tokens * (c.pairs + 8)), y_after(c.tokens * 40);
  const DeviceArray<float> y_before(c.tokens * 18);
  GemmArgs args{.x = d_x.data(), .tokens = c.tokens, .in = c.in, .x_stride = c.in, .part_count = 3};
  args.parts[0] = {.w = before.device(), .y = y_before.data(), .y_stride = 18, .y_dtype = DType::f32};
  args.parts[1] = {.w = gate.device(), .y = y.data(), .y_stride = c.pairs + 8};
  args.parts[1].up = up.device();
  args.parts[2] = {.w = after.device(), .y = y_after.data(), .y_stride = 40};
  args.glu = c.glu;
  ASSERT_TRUE(gemm_cuda(args, nullptr, nullptr).ok());
  gpu_sync();

  std::vector<float> gates = gate.product(x, c.tokens), ups = up.product(x, c.tokens), want(gates.size());
  glu_ref(matrix(gates.data(), c.tokens, c.pairs), matrix(ups.data(), c.tokens, c.pairs), c.glu,
          matrix(want.data(), c.tokens, c.pairs));
  const std::vector<float> all = from_bf16(y.get());
  std::vector<float> got;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto row = all.begin() + t * (c.pairs + 8);
    got.insert(got.end(), row, row + c.pairs);
    for (int64_t i = c.pairs; i < c.pairs + 8; ++i) EXPECT_TRUE(std::isnan(row[i])) << t;
  }
  EXPECT_LE(norm_ratio(got, want), kOneRounding);
  EXPECT_LE(norm_ratio(y_before.get(), before.product(x, c.tokens)), 1e-5);
  EXPECT_LE(norm_ratio(from_bf16(y_after.get()), after.product(x, c.tokens)), kOneRounding);
  EXPECT_TRUE(y.guards_intact() && y_before.guards_intact() && y_after.guards_intact());
}

void check_two(int64_t tokens, int64_t in, int64_t rows) {
  SCOPED_TRACE(fmt::format("T {} I {} O {}", tokens, in, rows));
  std::vector<float> x[2] = {random_bf16(tokens * in, 1), random_bf16(tokens * in, 2)};
  const Matrix w[2] = {{rows, in, 3}, {rows, in, 4}};
  const DeviceArray<uint16_t> d_x[2] = {DeviceArray<uint16_t>(to_bf16(x[0])), DeviceArray<uint16_t>(to_bf16(x[1]))};
  const DeviceArray<uint16_t> y[2] = {DeviceArray<uint16_t>(tokens * rows), DeviceArray<uint16_t>(tokens * rows)};
  GemmArgs args{.x = d_x[0].data(), .tokens = tokens, .in = in, .x_stride = in, .part_count = 2};
  args.other_x = d_x[1].data();
  for (size_t i = 0; i < 2; ++i) args.parts[i] = {.w = w[i].device(), .y = y[i].data(), .y_stride = rows};
  ASSERT_TRUE(gemm_cuda(args, nullptr, nullptr).ok());
  gpu_sync();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_LE(norm_ratio(from_bf16(y[i].get()), w[i].product(x[i], tokens)), kOneRounding) << i;
    EXPECT_TRUE(y[i].guards_intact()) << i;
  }
}

// A residual sum and its norm in front, twice, so that the second finds what the first left. keep: of what rounding cuts off, too.
void check_site(int64_t in, int64_t pairs, bool norm_bf16, bool keep) {
  SCOPED_TRACE(fmt::format("I {} pairs {} norm {} keep {}", in, pairs, norm_bf16 ? "bf16" : "f32", keep));
  std::vector<float> high = random_bf16(in, 1), low(high.size()), sum(high.size()), gain = random_bf16(in, 3);
  const Matrix first(18, in, 4), gate(pairs, in, 5), up(pairs, in, 6);
  const DeviceArray<uint16_t> prefix(to_bf16(high)), rest(in), gain_bf16(to_bf16(gain)), x(in), y(pairs);
  const DeviceArray<float> gain_f32(gain), y_first(18);
  const DeviceArray<uint32_t> counter(std::vector<uint32_t>{0});
  for (uint64_t pass = 0; pass < 2; ++pass) {
    const std::vector<float> more = random_bf16(in, 10 + pass);
    const DeviceArray<uint16_t> delta(to_bf16(more));
    GemmArgs args{.x = x.data(), .tokens = 1, .in = in, .x_stride = in, .part_count = 2};
    args.parts[0] = {.w = first.device(), .y = y_first.data(), .y_stride = 18, .y_dtype = DType::f32};
    args.parts[1] = {.w = gate.device(), .y = y.data(), .y_stride = pairs};
    args.parts[1].up = up.device();
    args.site = {.prefix = prefix.data(), .delta = delta.data(), .prefix_out = prefix.data(), .norm_bf16 = norm_bf16, .eps = 1e-5F, .out = x.data(), .counter = counter.data()};
    args.split = keep;
    if (keep) args.site.rest = pass > 0 ? rest.data() : nullptr, args.site.rest_out = rest.data();
    args.site.norm = norm_bf16 ? static_cast<const void*>(gain_bf16.data()) : gain_f32.data();
    ASSERT_TRUE(gemm_takes_site(args));
    ASSERT_TRUE(gemm_cuda(args, nullptr, nullptr).ok());
    gpu_sync();
    double squares = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      const float total = (high[i] + low[i]) + more[i];
      high[i] = round_to_bf16(total);
      low[i] = keep ? round_to_bf16(total - high[i]) : 0;
      sum[i] = high[i] + low[i];
      squares += static_cast<double>(sum[i]) * static_cast<double>(sum[i]);
    }
    EXPECT_EQ(from_bf16(prefix.get()), high);
    if (keep) {
      EXPECT_EQ(from_bf16(rest.get()), low);
    }
    std::vector<float> normed(sum.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      normed[i] = static_cast<float>(static_cast<double>(sum[i]) / std::sqrt(squares / static_cast<double>(in) + 1e-5) * static_cast<double>(gain[i]));
    }
    std::vector<float> got_x = from_bf16(x.get());
    EXPECT_LE(norm_ratio(got_x, normed), kOneRounding);
    // Products of a split x see 16 bits of it: an error of 2^-17 a number.
    std::vector<float>& seen = keep ? normed : got_x;
    EXPECT_LE(norm_ratio(y_first.get(), first.product(seen, 1)), keep ? 3e-5 : 1e-5);
    std::vector<float> gates = gate.product(seen, 1), ups = up.product(seen, 1), want(gates.size());
    glu_ref(matrix(gates.data(), 1, pairs), matrix(ups.data(), 1, pairs), {}, matrix(want.data(), 1, pairs));
    EXPECT_LE(norm_ratio(from_bf16(y.get()), want), kOneRounding);
    EXPECT_EQ(counter.get(), std::vector<uint32_t>{0});
    EXPECT_TRUE(x.guards_intact() && y.guards_intact() && prefix.guards_intact() && rest.guards_intact() && y_first.guards_intact());
  }
}

// One token, x in two rows, without a site: sums, and a pair whose activation sees both rows.
void check_split(int64_t in, int64_t rows, bool deterministic = false) {
  SCOPED_TRACE(fmt::format("I {} O {} deterministic {}", in, rows, deterministic));
  const std::vector<float> x = random_bf16(in, 1), rest = random_bf16(in, 2, 2e-3F);
  std::vector<float> both(x.size());
  for (size_t i = 0; i < x.size(); ++i) both[i] = x[i] + rest[i];
  constexpr int64_t kPairs = 24;
  const Matrix w(rows, in, 3), gate(kPairs, in, 4), up(kPairs, in, 5);
  const DeviceArray<uint16_t> d_x(to_bf16(x)), d_rest(to_bf16(rest));
  const DeviceArray<float> y(rows), hidden(kPairs);
  GemmArgs args{.x = d_x.data(), .tokens = 1, .in = in, .x_stride = in, .part_count = 1, .deterministic = deterministic};
  args.parts[0] = {.w = w.device(), .y = y.data(), .y_stride = rows, .y_dtype = DType::f32};
  args.split = true, args.x_rest = d_rest.data();
  if (rows % 2 == 0) {
    args.parts[1] = {.w = gate.device(), .y = hidden.data(), .y_stride = kPairs, .y_dtype = DType::f32};
    args.parts[1].up = up.device();
    args.part_count = 2;
  }
  ASSERT_TRUE(gemm_takes_split(args));
  ASSERT_TRUE(gemm_cuda(args, nullptr, nullptr).ok());
  gpu_sync();
  EXPECT_LE(norm_ratio(y.get(), w.product(both, 1)), 1e-5);
  if (rows % 2 == 0) {
    std::vector<float> gates = gate.product(both, 1), ups = up.product(both, 1), want(kPairs);
    glu_ref(matrix(gates.data(), 1, kPairs), matrix(ups.data(), 1, kPairs), {}, matrix(want.data(), 1, kPairs));
    EXPECT_LE(norm_ratio(hidden.get(), want), 3e-5);
  }
  EXPECT_TRUE(y.guards_intact() && hidden.guards_intact());
}

// Accumulated on top of what is there, as shared and routed experts meet in one output.
void check_split_accumulates(int64_t in, int64_t rows) {
  SCOPED_TRACE(fmt::format("I {} O {}", in, rows));
  std::vector<float> both = random_bf16(in, 1);
  const std::vector<float> rest = random_bf16(in, 2, 2e-3F), before = random_bf16(rows, 3);
  const DeviceArray<uint16_t> d_x(to_bf16(both)), d_rest(to_bf16(rest)), y(to_bf16(before));
  for (size_t i = 0; i < both.size(); ++i) both[i] += rest[i];
  const Matrix w(rows, in, 4);
  GemmArgs args{.x = d_x.data(), .tokens = 1, .in = in, .x_stride = in, .part_count = 1};
  args.parts[0] = {.w = w.device(), .y = y.data(), .y_stride = rows, .accumulate = true};
  args.split = true, args.x_rest = d_rest.data();
  ASSERT_TRUE(gemm_cuda(args, nullptr, nullptr).ok());
  gpu_sync();
  std::vector<float> want = w.product(both, 1);
  for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
  EXPECT_LE(norm_ratio(from_bf16(y.get()), want), kOneRounding);
  EXPECT_TRUE(y.guards_intact());
}

TEST(GemmFusedGpu, SanitizeSplit) {
  K3_NEEDS_GPU();
  check_split(32, 3);
  check_split(544, 40);
  check_split(2304, 7000);
  check_split_accumulates(96, 5);
}

// What the kernel of one token does not serve goes to the stream kernel: wide rows, deterministic; one tile and many, and clusters.
TEST(GemmFusedGpu, SanitizeSplitStreams) {
  K3_NEEDS_GPU();
  check_split(4640, 3);
  check_split(32, 2, true);
  check_split(544, 41, true);
  check_split_accumulates(4640, 18);
}

TEST(GemmFusedGpu, SplitStreamsOfAllShapes) {
  K3_NEEDS_GPU();
  for (const int64_t rows : {33, 896, 4608}) check_split(7168, rows);
  check_split(12288, 7168);
  for (const int64_t rows : {40, 2500, 9000}) check_split(2304, rows, true);
}

TEST(GemmFusedGpu, WhatTakesASplitInput) {
  K3_NEEDS_GPU();
  const Matrix w(16, 64, 1);
  const DeviceArray<uint16_t> x(2 * 64), y(2 * 16);
  GemmArgs args{.x = x.data(), .tokens = 1, .in = 64, .x_stride = 64, .part_count = 1};
  args.parts[0] = {.w = w.device(), .y = y.data(), .y_stride = 16};
  args.x_rest = x.data() + 64;
  EXPECT_TRUE(gemm_takes_split(args));
  args.x_rest = x.data() + 1;  // unaligned
  EXPECT_FALSE(gemm_takes_split(args));
  args.x_rest = nullptr, args.tokens = 2;
  EXPECT_FALSE(gemm_takes_split(args));
  args.tokens = 1, args.other_x = x.data();
  EXPECT_FALSE(gemm_takes_split(args));
  args.other_x = nullptr, args.parts[0].w.scheme = Scheme::mxfp4;
  EXPECT_FALSE(gemm_takes_split(args));
}

TEST(GemmFusedGpu, SanitizeSite) {
  K3_NEEDS_GPU();
  for (const bool keep : {false, true}) {
    check_site(32, 1, true, keep);
    check_site(544, 40, false, keep);
  }
}

TEST(GemmFusedGpu, SitesOfAllShapes) {
  K3_NEEDS_GPU();
  for (const bool keep : {false, true}) {
    check_site(2304, 1024, true, keep);
    check_site(2304, 7000, true, keep);
    check_site(4096, 1500, false, keep);
  }
}

TEST(GemmFusedGpu, SanitizePairs) {
  K3_NEEDS_GPU();
  check_pair({1, 32, 1, {}});
  check_pair({3, 96, 17, {GluKind::situ, 4.0F, 25.0F}});
  check_two(1, 32, 5);
}

TEST(GemmFusedGpu, PairsOfAllShapes) {
  K3_NEEDS_GPU();
  for (const Glu& glu : {Glu{}, Glu{GluKind::situ, 4.0F, 25.0F}, Glu{GluKind::situ, 2.0F, {}}}) {
    check_pair({1, 2304, 1024, glu});
    check_pair({4, 7168, 96, glu});
    check_pair({8, 544, 130, glu});
    check_pair({9, 1056, 333, glu});
    check_pair({16, 2304, 2500, glu});
  }
}

TEST(GemmFusedGpu, TwoInputs) {
  K3_NEEDS_GPU();
  check_two(1, 128, 4096);
  check_two(5, 128, 1536);
  check_two(8, 1024, 70);
  check_two(12, 128, 4096);
  check_two(16, 2304, 33);
}

}  // namespace
}  // namespace k3::ops::cuda
