// glu: every instruction set, kind and case against the double reference; limits; aliasing; strides.
#include "k3/ops/situ_glu/situ_glu.h"

#include <gtest/gtest.h>

#include <cstring>

#include "k3/ops/situ_glu/situ_glu_cases.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

TEST(Glu, EveryIsaKindAndCaseAgainstReference) {
  for (const auto& [tokens, width] : kGluCases) {
    for (const Glu& kind : kGluKinds) {
      for (const float scale : {1.0F, 20.0F, 1e-4F}) {
        std::vector<float> g = random_normal(tokens * width, 1, scale), u = random_normal(tokens * width, 2, scale),
                           want(g.size());
        const Tensor gate = matrix(g.data(), tokens, width), up = matrix(u.data(), tokens, width);
        glu_ref(gate, up, kind, matrix(want.data(), tokens, width));
        for (const Isa isa : test_isas()) {
          TestRun run(isa, 2);
          Guarded out(tokens * width);
          glu(run.ctx, gate, up, kind, matrix(out.data(), tokens, width));
          EXPECT_TRUE(out.intact());
          for (int64_t i = 0; i < tokens * width; ++i) {
            const float w = want[static_cast<size_t>(i)];
            ASSERT_LE(std::abs(out.data()[i] - w), 1e-6F * std::abs(w) + 1e-7F)
                << isa_name(isa) << " gate " << g[static_cast<size_t>(i)] << " up " << u[static_cast<size_t>(i)];
          }
        }
      }
    }
  }
}

TEST(Glu, LimitsOfSitu) {
  // Large gates cap at beta1, large ups at beta2; a large negative gate closes; nothing turns into NaN.
  std::vector<float> g = {INFINITY, 1e30F, 200, -INFINITY, -1e30F, -200, 0, INFINITY, NAN, 1};
  std::vector<float> u = {INFINITY, 1e30F, -1e4F, INFINITY, 1e30F, 5, 7, -INFINITY, 1, NAN};
  const std::vector<float> want = {100, 100, -100, 0, 0, 0, 0, -100, NAN, NAN};
  std::vector<float> out(g.size());
  for (const Isa isa : test_isas()) {
    glu_row(isa, g.data(), u.data(), static_cast<int64_t>(g.size()), {GluKind::situ, 4.0F, 25.0F}, out.data());
    for (size_t i = 0; i < g.size(); ++i) {
      if (std::isnan(want[i])) {
        EXPECT_TRUE(std::isnan(out[i])) << isa_name(isa) << " " << i;
      } else {
        EXPECT_NEAR(out[i], want[i], 1e-6F * std::abs(want[i])) << isa_name(isa) << " " << i;
      }
    }
  }
}

TEST(Glu, SigmoidTakesTheUncappedGate) {
  // With the capped gate the value at g = 8 would be smaller by sigmoid(3.86) / sigmoid(8) = 0.9796.
  const float g = 8, u = 1;
  float out = 0;
  glu_row(detect_isa(), &g, &u, 1, {GluKind::situ, 4.0F, {}}, &out);
  EXPECT_NEAR(out, 4 * std::tanh(2.0) / (1 + std::exp(-8.0)), 4e-6);
}

TEST(Glu, OutMayBeGateOrUpAndRowsMayBeStrided) {
  constexpr int64_t kTokens = 3, kWidth = 37, kStride = 41;
  for (const Glu& kind : kGluKinds) {
    for (const Isa isa : test_isas()) {
      TestRun run(isa);
      std::vector<float> g = random_normal(kTokens * kStride, 3), u = random_normal(kTokens * kStride, 4), g2 = g, u2 = u;
      std::vector<float> out(kTokens * kStride, -7.0F);
      const auto view = [&](std::vector<float>& v) { return matrix(v.data(), kTokens, kWidth, kStride); };
      glu(run.ctx, view(g), view(u), kind, view(out));
      glu(run.ctx, view(g2), view(u), kind, view(g2));
      glu(run.ctx, view(g), view(u2), kind, view(u2));
      for (size_t t = 0; t < kTokens; ++t) {
        for (size_t i = 0; i < kStride; ++i) {
          const size_t at = t * kStride + i;
          EXPECT_EQ(g2[at], i < kWidth ? out[at] : g[at]);
          EXPECT_EQ(u2[at], i < kWidth ? out[at] : u[at]);
          if (i >= kWidth) {
            EXPECT_EQ(out[at], -7.0F);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace k3::ops
