#include "k3/ops/optim/quantile/quantile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "k3/ops/optim/optim_test_util.h"

namespace k3::ops {
namespace {

struct Router {
  int64_t tokens, experts, topk;
  std::vector<float> scores, bias;
  std::vector<uint8_t> valid;
  // Some experts are liked by every token: `skew` shifts the logits of expert e by skew * e / experts.
  Router(int64_t t, int64_t e, int64_t k, float skew = 2, uint64_t seed = 1)
      : tokens(t), experts(e), topk(k), scores(random_normal(t * e, seed)), bias(random_normal(e, seed + 1, 0.1F)),
        valid(static_cast<size_t>(t), 1) {
    for (size_t i = 0; i < scores.size(); ++i) {
      const float at = static_cast<float>(i % static_cast<size_t>(e)) / static_cast<float>(e);
      scores[i] = 1 / (1 + std::exp(-(scores[i] + skew * at)));
    }
  }
  QuantileInput<float> input() const { return {scores.data(), tokens, experts, 0, topk, bias.data(), valid.data()}; }
  std::vector<int32_t> histogram() const { return std::vector<int32_t>(static_cast<size_t>(experts * kQuantileBins)); }
  std::vector<int32_t> load() const {
    std::vector<int32_t> out(static_cast<size_t>(experts));
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int64_t> order(static_cast<size_t>(experts));
      std::iota(order.begin(), order.end(), 0);
      const auto biased = [&](int64_t e) { return scores[static_cast<size_t>(t * experts + e)] + bias[static_cast<size_t>(e)]; };
      std::partial_sort(order.begin(), order.begin() + topk, order.end(), [&](int64_t a, int64_t b) { return biased(a) > biased(b); });
      for (int64_t j = 0; j < topk; ++j) ++out[static_cast<size_t>(order[static_cast<size_t>(j)])];
    }
    return out;
  }
};

const std::vector<Router>& cases() {
  static const std::vector<Router> kCases = [] {
    std::vector<Router> c;
    for (const auto& [t, e, k] : {std::array<int64_t, 3>{0, 4, 1}, {1, 2, 1}, {3, 5, 4}, {16, 16, 4}, {17, 16, 4}, {33, 17, 2}, {257, 31, 8},
                                  {100, 64, 16}, {40, 896, 16}, {1000, 12, 3}, {20, 100, 40}}) {
      c.emplace_back(t, e, k);
      for (size_t i = 0; i < c.back().valid.size(); ++i) c.back().valid[i] = i % 7 != 3;
    }
    return c;
  }();
  return kCases;
}

TEST(Quantile, HistogramsEqualRefToTheBit) {
  for (const Router& r : cases()) {
    std::vector<int32_t> want = r.histogram();
    quantile_accumulate_ref(r.input(), want.data());
    int64_t valid = 0;
    for (const uint8_t v : r.valid) valid += v;
    for (int64_t e = 0; e < r.experts; ++e) {
      EXPECT_EQ(std::accumulate(want.begin() + e * kQuantileBins, want.begin() + (e + 1) * kQuantileBins, int64_t{0}), valid);
    }
    for (const Isa isa : test_isas()) {
      for (const int threads : {1, 2}) {
        TestRun run(isa, threads);
        std::vector<int32_t> got = r.histogram();
        quantile_accumulate(run.ctx, r.input(), got.data());
        EXPECT_EQ(got, want) << isa_name(isa) << " " << r.tokens << " tokens " << r.experts << " experts top " << r.topk;
      }
    }
  }
}

// training.md 14.4: micro-batches and ranks make no difference.
TEST(Quantile, SplitsAddUp) {
  const Router r(301, 24, 4);
  TestRun run(detect_isa(), 2);
  std::vector<int32_t> whole = r.histogram(), parts = r.histogram();
  quantile_accumulate(run.ctx, r.input(), whole.data());
  for (int64_t at = 0; at < r.tokens; at += 100) {
    QuantileInput<float> in = r.input();
    in.scores += at * r.experts;
    in.valid += at;
    in.tokens = std::min<int64_t>(100, r.tokens - at);
    quantile_accumulate(run.ctx, in, parts.data());
  }
  EXPECT_EQ(whole, parts);
}

TEST(Quantile, StridedScoresAndNan) {
  Router r(50, 6, 2);
  r.scores[17] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> wide(50 * 9, -1.0F);
  for (size_t t = 0; t < 50; ++t) std::copy_n(&r.scores[t * 6], 6, &wide[t * 9]);
  r.scores[17] = 0;
  for (const Isa isa : test_isas()) {
    TestRun run(isa, 2);
    std::vector<int32_t> want = r.histogram(), got = r.histogram();
    quantile_accumulate(run.ctx, r.input(), want.data());
    QuantileInput<float> in = r.input();
    in.scores = wide.data();
    in.stride = 9;
    quantile_accumulate(run.ctx, in, got.data());
    EXPECT_EQ(got, want);
  }
}

// The cutoff of every token by hand; the bias enters through it alone. All margins lie inside the range.
TEST(Quantile, ByHand) {
  const std::vector<float> scores = {0.9F, 0.5F, 0.1F}, bias = {0, 0, 0};
  std::vector<int32_t> histogram(3 * kQuantileBins);
  quantile_accumulate_ref(QuantileInput<float>{scores.data(), 1, 3, 0, 1, bias.data(), nullptr}, histogram.data());
  // Cutoff 0.5; r = -0.4, 0, 0.4; lo = -1, bins of 0.002.
  const auto bin = [&](int64_t e) { return std::find(histogram.begin() + e * kQuantileBins, histogram.begin() + (e + 1) * kQuantileBins, 1) - histogram.begin() - e * kQuantileBins; };
  EXPECT_NEAR(static_cast<double>(bin(0)), 300, 1);
  EXPECT_NEAR(static_cast<double>(bin(1)), 500, 1);
  EXPECT_NEAR(static_cast<double>(bin(2)), 700, 1);
  std::vector<float> moved = bias;
  TestRun run(detect_isa());
  quantile_update(run.ctx, 3, 1, 1, histogram.data(), moved.data());
  EXPECT_NEAR(moved[0], -0.4, 0.003);  // the favourite is held back: the sign
  EXPECT_NEAR(moved[1], 0, 0.003);
  EXPECT_NEAR(moved[2], 0.4, 0.003);
  EXPECT_EQ(std::count(histogram.begin(), histogram.end(), 0), 3 * kQuantileBins);
}

// training.md 14.4: histogram against exact quantile: at most a bin.
TEST(Quantile, HistogramIsTheExactQuantileToABin) {
  Router r(4096, 64, 4, 3, 9);
  std::vector<double> scores = to_doubles(r.scores), exact = to_doubles(r.bias), coarse = exact;
  const QuantileInput<double> in{scores.data(), r.tokens, r.experts, 0, r.topk, coarse.data(), nullptr};
  std::vector<int32_t> histogram = r.histogram();
  quantile_accumulate_ref(in, histogram.data());
  const auto [least, most] = std::minmax_element(coarse.begin(), coarse.end());
  const double width = (*most - *least + 2) / static_cast<double>(kQuantileBins);
  quantile_bias_ref({scores.data(), r.tokens, r.experts, 0, r.topk, in.bias, nullptr}, 1, exact.data());
  quantile_update_ref(r.experts, r.topk, 1, histogram.data(), coarse.data());
  double sum = 0;
  for (size_t e = 0; e < exact.size(); ++e) {
    EXPECT_NEAR(coarse[e], exact[e], width) << e;
    sum += coarse[e];
  }
  EXPECT_NEAR(sum, 0, 1e-12);
}

TEST(Quantile, FloatUpdateEqualsDouble) {
  for (const Router& r : cases()) {
    TestRun run(detect_isa(), 2);
    std::vector<int32_t> histogram = r.histogram();
    quantile_accumulate(run.ctx, r.input(), histogram.data());
    std::vector<int32_t> copy = histogram;
    std::vector<float> bias = r.bias;
    std::vector<double> want = to_doubles(r.bias);
    quantile_update(run.ctx, r.experts, r.topk, 0.3, histogram.data(), bias.data());
    quantile_update_ref(r.experts, r.topk, 0.3, copy.data(), want.data());
    for (size_t e = 0; e < bias.size(); ++e) EXPECT_NEAR(bias[e], want[e], 5e-7);
    if (r.tokens == 0) {
      EXPECT_EQ(bias, r.bias);
    }
  }
}

// Two updates balance a skewed router, as training.md 4.3 saw.
TEST(Quantile, BalancesASkewedRouter) {
  Router r(4096, 64, 4, 4, 21);
  std::fill(r.bias.begin(), r.bias.end(), 0.0F);
  TestRun run(detect_isa(), 2);
  std::vector<double> violation = {load_violation(r.load().data(), r.experts)};
  for (int step = 0; step < 3; ++step) {
    std::vector<int32_t> histogram = r.histogram();
    quantile_accumulate(run.ctx, r.input(), histogram.data());
    quantile_update(run.ctx, r.experts, r.topk, 1, histogram.data(), r.bias.data());
    violation.push_back(load_violation(r.load().data(), r.experts));
  }
  EXPECT_GT(violation[0], 2);
  EXPECT_LT(violation[1], 1);
  EXPECT_LT(violation[2], 0.4);
  EXPECT_LT(violation[3], 0.3);
}

TEST(Quantile, LoadsAndViolation) {
  TestRun run(detect_isa());
  const std::vector<int32_t> ids = {0, 1, 2, 1, 3, 1};
  std::vector<int32_t> load(4);
  expert_load(run.ctx, ids.data(), 3, 2, 4, nullptr, load.data());
  EXPECT_EQ(load, (std::vector<int32_t>{1, 3, 1, 1}));
  EXPECT_DOUBLE_EQ(load_violation(load.data(), 4), 3 / 1.5 - 1);
  const std::vector<uint8_t> valid = {1, 0, 0};
  expert_load(run.ctx, ids.data(), 3, 2, 4, valid.data(), load.data());
  EXPECT_EQ(load, (std::vector<int32_t>{2, 4, 1, 1}));
  EXPECT_EQ(load_violation(std::vector<int32_t>(4).data(), 4), 0);
}

TEST(Quantile, SignUpdateMovesTowardsTheMean) {
  TestRun run(detect_isa());
  const std::vector<int32_t> load = {4, 0, 2, 2};
  std::vector<float> bias = {0.5F, 0.5F, 0, 0};
  std::vector<double> want = to_doubles(bias);
  sign_balance(run.ctx, load.data(), 4, 0.125, bias.data());
  sign_balance_ref(load.data(), 4, 0.125, want.data());
  EXPECT_EQ(bias, (std::vector<float>{0.375F, 0.625F, 0, 0}));
  EXPECT_EQ(to_doubles(bias), want);
}

}  // namespace
}  // namespace k3::ops
