// router: every instruction set and case against the double reference; ties, bias, NaN.
#include "k3/ops/router/router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "k3/ops/router/router_cases.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Tensor ids_view(std::vector<int32_t>& ids, int64_t tokens, int64_t topk) {
  return Tensor(ids.data(), DType::i32, {tokens, topk});
}

Routed route(Isa isa, std::vector<float>& logits, int64_t tokens, std::vector<float>& bias, const RouterOptions& options) {
  TestRun run(isa, 2);
  Routed r{std::vector<int32_t>(static_cast<size_t>(tokens * options.topk) + 1, -9),
           std::vector<float>(static_cast<size_t>(tokens * options.topk) + 1, -9.0F)};
  const auto experts = tokens == 0 ? int64_t{8} : static_cast<int64_t>(logits.size()) / tokens;
  router(run.ctx, matrix(logits.data(), tokens, experts),
         bias.empty() ? Tensor() : Tensor(bias.data(), DType::f32, {experts}), options,
         ids_view(r.ids, tokens, options.topk), matrix(r.weights.data(), tokens, options.topk));
  EXPECT_EQ(r.ids.back(), -9);
  EXPECT_EQ(r.weights.back(), -9.0F);
  r.ids.pop_back();
  r.weights.pop_back();
  return r;
}

TEST(Router, EveryIsaAndCaseAgainstReference) {
  for (const RouterCase& c : kRouterCases) {
    for (const bool with_bias : {false, true}) {
      std::vector<float> logits = random_normal(c.tokens * c.experts, 1, 2.0F);
      std::vector<float> bias = with_bias ? random_normal(c.experts, 2, 0.3F) : std::vector<float>{};
      const auto slots = static_cast<size_t>(c.tokens * c.options.topk);
      Routed want{std::vector<int32_t>(slots), std::vector<float>(slots)};
      router_ref(matrix(logits.data(), c.tokens, c.experts),
                 with_bias ? Tensor(bias.data(), DType::f32, {c.experts}) : Tensor(), c.options,
                 ids_view(want.ids, c.tokens, c.options.topk), matrix(want.weights.data(), c.tokens, c.options.topk));
      const auto biased = [&](size_t slot, int32_t e) {
        const size_t t = slot / static_cast<size_t>(c.options.topk);
        const double x = static_cast<double>(logits[t * static_cast<size_t>(c.experts) + static_cast<size_t>(e)]);
        return 1 / (1 + std::exp(-x)) + (with_bias ? static_cast<double>(bias[static_cast<size_t>(e)]) : 0.0);
      };
      for (const Isa isa : test_isas()) {
        const Routed got = route(isa, logits, c.tokens, bias, c.options);
        for (size_t i = 0; i < slots; ++i) {
          if (got.ids[i] != want.ids[i]) {
            EXPECT_NEAR(biased(i, got.ids[i]), biased(i, want.ids[i]), 1e-6) << isa_name(isa) << " slot " << i;
            continue;
          }
          EXPECT_NEAR(got.weights[i], want.weights[i], 1e-6F * std::max(1.0F, c.options.scale)) << isa_name(isa);
        }
      }
    }
  }
}

TEST(Router, TiesGoToTheLowestIndexBestFirst) {
  std::vector<float> none, logits(40, 0.5F);
  logits[30] = 2.0F;
  logits[31] = 2.0F;
  logits[7] = 3.0F;
  for (const Isa isa : test_isas()) {
    const Routed r = route(isa, logits, 1, none, {6, true, 1.0F});
    EXPECT_EQ(r.ids, (std::vector<int32_t>{7, 30, 31, 0, 1, 2})) << isa_name(isa);
    float sum = 0;
    for (const float w : r.weights) sum += w;
    EXPECT_NEAR(sum, 1.0F, 1e-6F);
  }
}

TEST(Router, BiasChoosesAndUnbiasedScoreWeighs) {
  std::vector<float> logits = {0, 1, 2, 3}, bias = {10, 0, 0, -10};
  for (const Isa isa : test_isas()) {
    const Routed r = route(isa, logits, 1, bias, {2, false, 2.0F});
    EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 2}));
    EXPECT_NEAR(r.weights[0], 2 * 0.5F, 1e-6F);
    EXPECT_NEAR(r.weights[1], 2 / (1 + std::exp(-2.0F)), 1e-6F);
  }
}

TEST(Router, NegligibleScoresDoNotDivideByZero) {
  std::vector<float> none, logits(8, -200.0F);
  for (const Isa isa : test_isas()) {
    for (const float w : route(isa, logits, 1, none, {2, true, 1.0F}).weights) EXPECT_EQ(w, 0.0F);
  }
}

TEST(Router, NanLogitsStillGiveValidDistinctIds) {
  std::vector<float> none, logits(16, NAN);
  logits[9] = 0.0F;
  for (const Isa isa : test_isas()) {
    const Routed r = route(isa, logits, 1, none, {3, true, 1.0F});
    EXPECT_EQ(r.ids[0], 9);
    EXPECT_EQ(std::set<int32_t>(r.ids.begin(), r.ids.end()).size(), 3U);
    for (const int32_t id : r.ids) EXPECT_TRUE(id >= 0 && id < 16);
    EXPECT_TRUE(std::isnan(r.weights[1]));
  }
}

}  // namespace
}  // namespace k3::ops
