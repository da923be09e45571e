// rms_norm and gated_rms_norm: every instruction set against the double reference; eps; guards; in place.
#include "k3/ops/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "k3/ops/rms_norm/rms_norm_cases.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

void expect_relative(const float* got, const float* want, int64_t count, const std::string& where) {
  for (int64_t i = 0; i < count; ++i) {
    if (!(std::abs(got[i] - want[i]) <= 2e-6F * std::abs(want[i]) + 1e-37F)) {
      FAIL() << where << " at " << i << ": " << got[i] << " want " << want[i];
    }
  }
}

TEST(RmsNorm, EveryIsaAndCaseAgainstReference) {
  for (const auto& [tokens, width] : kRmsNormCases) {
    for (const float scale : {1.0F, 1e-3F, 1e3F}) {
      std::vector<float> x = random_normal(tokens * width, 1, scale), w = random_normal(width, 2);
      std::vector<float> want(x.size());
      const Tensor weight(w.data(), DType::f32, {width});
      for (const float eps : {1e-5F, 1e-6F}) {
        rms_norm_ref(matrix(x.data(), tokens, width), weight, eps, matrix(want.data(), tokens, width));
        for (const Isa isa : test_isas()) {
          TestRun run(isa, 2);
          Guarded out(tokens * width);
          rms_norm(run.ctx, matrix(x.data(), tokens, width), weight, eps, matrix(out.data(), tokens, width));
          EXPECT_TRUE(out.intact());
          expect_relative(out.data(), want.data(), tokens * width, fmt::format("{} {}x{}", isa_name(isa), tokens, width));
          std::vector<float> in_place = x;
          rms_norm(run.ctx, matrix(in_place.data(), tokens, width), weight, eps, matrix(in_place.data(), tokens, width));
          EXPECT_EQ(0, compare_bytes(in_place.data(), out.data(), in_place.size() * sizeof(float)));
        }
      }
    }
  }
}

TEST(RmsNorm, StridedRowsLeaveTheGapsAlone) {
  std::vector<float> x = random_normal(3 * 40, 5), w(33, 1.0F), want(3 * 33);
  const Tensor weight(w.data(), DType::f32, {33});
  for (const Isa isa : test_isas()) {
    TestRun run(isa);
    std::vector<float> out(3 * 37, -7.0F);
    rms_norm(run.ctx, matrix(x.data(), 3, 33, 40), weight, 1e-5F, matrix(out.data(), 3, 33, 37));
    rms_norm_ref(matrix(x.data(), 3, 33, 40), weight, 1e-5F, matrix(want.data(), 3, 33));
    for (int64_t t = 0; t < 3; ++t) {
      expect_relative(out.data() + t * 37, want.data() + t * 33, 33, "strided");
      for (size_t i = 33; i < 37; ++i) EXPECT_EQ(out[static_cast<size_t>(t) * 37 + i], -7.0F);
    }
  }
}

// Mean square 1e-6: eps 1e-5 shrinks the output by sqrt(11), eps 1e-6 by sqrt(2). A kernel that took the other eps, left it
// out or added it to the root would miss these values by far.
TEST(RmsNorm, EpsIsAddedToTheMeanOfSquares) {
  constexpr int64_t kWidth = 48;
  std::vector<float> x(kWidth, 1e-3F), w(kWidth, 2.0F), gate(kWidth, 0.0F), out(kWidth);
  const Tensor weight(w.data(), DType::f32, {kWidth});
  for (const Isa isa : test_isas()) {
    TestRun run(isa);
    for (const auto& [eps, want] : {std::pair{1e-5F, 2.0F / std::sqrt(11.0F)}, {1e-6F, 2.0F / std::sqrt(2.0F)}}) {
      rms_norm(run.ctx, matrix(x.data(), 1, kWidth), weight, eps, matrix(out.data(), 1, kWidth));
      for (const float v : out) EXPECT_NEAR(v, want, 3e-6F * want) << isa_name(isa);
      gated_rms_norm(run.ctx, Tensor(x.data(), DType::f32, {1, 1, kWidth}), weight, matrix(gate.data(), 1, kWidth), eps,
                     matrix(out.data(), 1, kWidth));
      for (const float v : out) EXPECT_NEAR(v, want / 2, 3e-6F * want) << isa_name(isa);
    }
  }
}

TEST(RmsNorm, ZeroRowsGiveZeros) {
  std::vector<float> x(20), w(20, 1.0F), out(20, 5.0F);
  for (const Isa isa : test_isas()) {
    TestRun run(isa);
    rms_norm(run.ctx, matrix(x.data(), 1, 20), Tensor(w.data(), DType::f32, {20}), 1e-5F, matrix(out.data(), 1, 20));
    for (const float v : out) EXPECT_EQ(v, 0.0F);
  }
}

TEST(GatedRmsNorm, EveryIsaAndCaseAgainstReference) {
  for (const auto& [tokens, heads, width] : kGatedCases) {
    for (const float scale : {1.0F, 1e-3F}) {
      const int64_t count = tokens * heads * width;
      std::vector<float> x = random_normal(count, 1, scale), w = random_normal(width, 2), g = random_normal(count, 3, 6.0F);
      std::vector<float> want(x.size());
      const Tensor weight(w.data(), DType::f32, {width}), xs(x.data(), DType::f32, {tokens, heads, width});
      const Tensor gate = matrix(g.data(), tokens, heads * width);
      for (const float eps : {1e-5F, 1e-6F}) {
        gated_rms_norm_ref(xs, weight, gate, eps, matrix(want.data(), tokens, heads * width));
        for (const Isa isa : test_isas()) {
          TestRun run(isa, 2);
          Guarded out(count);
          gated_rms_norm(run.ctx, xs, weight, gate, eps, matrix(out.data(), tokens, heads * width));
          EXPECT_TRUE(out.intact());
          expect_relative(out.data(), want.data(), count, fmt::format("{} {}x{}x{}", isa_name(isa), tokens, heads, width));
        }
      }
    }
  }
}

TEST(RmsNorm, RowDoesNotDependOnNeighboursOrThreads) {
  constexpr int64_t kTokens = 40, kWidth = 1027;
  std::vector<float> x = random_normal(kTokens * kWidth, 8), w = random_normal(kWidth, 9), all(x.size()), one(kWidth);
  const Tensor weight(w.data(), DType::f32, {kWidth});
  for (const Isa isa : test_isas()) {
    TestRun many(isa, 3), single(isa, 1);
    rms_norm(many.ctx, matrix(x.data(), kTokens, kWidth), weight, 1e-5F, matrix(all.data(), kTokens, kWidth));
    for (int64_t t = 0; t < kTokens; ++t) {
      rms_norm(single.ctx, matrix(x.data() + t * kWidth, 1, kWidth), weight, 1e-5F, matrix(one.data(), 1, kWidth));
      EXPECT_EQ(0, compare_bytes(one.data(), all.data() + t * kWidth, sizeof(float) * kWidth)) << isa_name(isa);
    }
  }
}

}  // namespace
}  // namespace k3::ops
