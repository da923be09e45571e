#include <gtest/gtest.h>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/router/cuda/router_cuda.h"
#include "k3/ops/router/router_cases.h"

namespace k3::ops::cuda {
namespace {

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(const std::vector<float>& logits, const std::vector<float>& bias, int tokens, int experts,
             const RouterOptions& options, int first = 0, int count = 0) {
  const DeviceArray<float> d_logits(logits), d_bias(bias), weights(tokens * options.topk);
  const DeviceArray<int32_t> ids(tokens * options.topk);
  const RouterCuda args{.logits = d_logits.data(),
                        .bias = bias.empty() ? nullptr : d_bias.data(),
                        .ids = ids.data(),
                        .weights = weights.data(),
                        .tokens = tokens,
                        .experts = experts,
                        .topk = static_cast<int>(options.topk),
                        .renormalise = options.renormalise,
                        .scale = options.scale,
                        .local_first = first,
                        .local_count = count};
  EXPECT_EQ(router_cuda(args, nullptr).code, 0);
  gpu_sync();
  EXPECT_TRUE(ids.guards_intact() && weights.guards_intact());
  return {ids.get(), weights.get()};
}

void check(const RouterCase& c, bool with_bias, float deviation) {
  std::vector<float> logits = random_normal(c.tokens * c.experts, 1, deviation),
                     bias = with_bias ? random_normal(c.experts, 2, 0.3F) : std::vector<float>{};
  const auto slots = static_cast<size_t>(c.tokens * c.options.topk);
  Routed want{std::vector<int32_t>(slots), std::vector<float>(slots)};
  router_ref(matrix(logits.data(), c.tokens, c.experts), with_bias ? Tensor(bias.data(), DType::f32, {c.experts}) : Tensor(),
             c.options, Tensor(want.ids.data(), DType::i32, {c.tokens, c.options.topk}),
             matrix(want.weights.data(), c.tokens, c.options.topk));
  const auto biased = [&](size_t slot, int32_t e) {
    const double x = static_cast<double>(
        logits[slot / static_cast<size_t>(c.options.topk) * static_cast<size_t>(c.experts) + static_cast<size_t>(e)]);
    return 1 / (1 + std::exp(-x)) + (with_bias ? static_cast<double>(bias[static_cast<size_t>(e)]) : 0.0);
  };
  const auto tokens = static_cast<int>(c.tokens), experts = static_cast<int>(c.experts);
  const Routed got = route(logits, bias, tokens, experts, c.options);
  for (size_t i = 0; i < slots; ++i) {
    ASSERT_TRUE(got.ids[i] >= 0 && got.ids[i] < c.experts);
    if (got.ids[i] != want.ids[i]) {
      EXPECT_NEAR(biased(i, got.ids[i]), biased(i, want.ids[i]), 1e-6) << experts << " experts, slot " << i;
      continue;
    }
    EXPECT_NEAR(got.weights[i], want.weights[i], 1e-6F * std::max(1.0F, c.options.scale))
        << experts << " experts, slot " << i;
  }
  const int first = experts / 3, count = std::max(1, experts / 4);
  const Routed slice = route(logits, bias, tokens, experts, c.options, first, count);
  EXPECT_EQ(slice.weights, got.weights);
  for (size_t i = 0; i < slots; ++i) {
    const bool ours = got.ids[i] >= first && got.ids[i] < first + count;
    EXPECT_EQ(slice.ids[i], ours ? got.ids[i] : -1);
  }
}

TEST(RouterCuda, SanitizeCases) {
  K3_NEEDS_GPU();
  for (const RouterCase& c : kRouterCases) {
    for (const bool with_bias : {false, true}) check(c, with_bias, 2.0F);
  }
}

TEST(RouterCuda, SanitizePlainKernel) {
  K3_NEEDS_GPU();
  const PretendPlain plain;
  for (const RouterCase& c : kRouterCases) {
    for (const bool with_bias : {false, true}) check(c, with_bias, 2.0F);
  }
}

TEST(RouterCuda, ManyTokens) {
  K3_NEEDS_GPU();
  check({300, 1024, {16, true, 1.0F}}, true, 1.0F);
  check({133, 896, {16, true, 2.5F}}, true, 20.0F);  // saturated scores
}

void check_ties() {
  std::vector<float> logits(40, 0.5F);
  logits[30] = logits[31] = 2.0F;
  logits[7] = 3.0F;
  EXPECT_EQ(route(logits, {}, 1, 40, {6, true, 1.0F}).ids, (std::vector<int32_t>{7, 30, 31, 0, 1, 2}));
  std::vector<float> all_nan(40, std::nanf("")), some(4, std::nanf(""));
  EXPECT_EQ(route(all_nan, {}, 1, 40, {3, true, 1.0F}).ids, (std::vector<int32_t>{0, 1, 2}));
  some[2] = -100.0F;
  EXPECT_EQ(route(some, {}, 1, 4, {2, true, 1.0F}).ids, (std::vector<int32_t>{2, 0}));
  const Routed zeros =
      route(std::vector<float>(8, -200.0F), std::vector<float>{-0.0F, 0.0F, -0.0F, 0, 0, 0, 0, 0}, 1, 8, {8, true, 1.0F});
  EXPECT_EQ(zeros.ids, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(RouterCuda, TiesGoToTheLowestIndexBestFirstAndNanLast) {
  K3_NEEDS_GPU();
  check_ties();
  const PretendPlain plain;
  check_ties();
}

}  // namespace
}  // namespace k3::ops::cuda
