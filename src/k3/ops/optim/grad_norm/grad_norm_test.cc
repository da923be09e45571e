#include "k3/ops/optim/grad_norm/grad_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "k3/ops/optim/optim_cases.h"
#include "k3/ops/optim/optim_test_util.h"

namespace k3::ops {
namespace {

class GradNormTest : public testing::Test {
 protected:
  GradNormTest() {
    for (const int64_t count : flat_cases()) {
      data.push_back(random_normal(count, static_cast<uint64_t>(count) + 3, 0.02F));
      doubles.push_back(to_doubles(data.back()));
    }
  }
  std::vector<GradTensor<float>> list() const {
    std::vector<GradTensor<float>> out;
    for (const auto& d : data) out.push_back({d.data(), static_cast<int64_t>(d.size())});
    return out;
  }
  std::vector<GradTensor<double>> d_list() const {
    std::vector<GradTensor<double>> out;
    for (const auto& d : doubles) out.push_back({d.data(), static_cast<int64_t>(d.size())});
    return out;
  }
  std::vector<std::vector<float>> data;
  std::vector<std::vector<double>> doubles;
};

TEST_F(GradNormTest, EveryIsaAgainstDouble) {
  for (const Isa isa : test_isas()) {
    for (const double most : {1.0, 1e6}) {
      TestRun run(isa, 2);
      GradNorm<float> got;
      GradNorm<double> want;
      grad_norm(run.ctx, list(), most, &got);
      grad_norm_ref(d_list(), most, &want);
      EXPECT_NEAR(got.norm, want.norm, 1e-12 * want.norm);
      EXPECT_EQ(got.scale, static_cast<float>(want.scale));
      EXPECT_EQ(got.bad_tensor, -1);
      EXPECT_EQ(want.scale == 1, most > 1);
      if (most == 1) {
        EXPECT_NEAR(want.scale, 1 / want.norm, 1e-5 / want.norm);
      }
    }
  }
}

TEST_F(GradNormTest, ThreadsChangeNoBit) {
  double want = 0;
  for (const int threads : {1, 2, 4}) {
    TestRun run(detect_isa(), threads);
    GradNorm<float> got;
    grad_norm(run.ctx, list(), 1, &got);
    if (threads == 1) want = got.norm;
    EXPECT_EQ(got.norm, want);
  }
}

TEST_F(GradNormTest, NamesTheFirstBadTensor) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const Isa isa : test_isas()) {
      data[10][32] = bad;   // tail of a vector
      data[15][16384] = bad;
      TestRun run(isa, 2);
      GradNorm<float> got;
      grad_norm(run.ctx, list(), 1, &got);
      EXPECT_EQ(got.bad_tensor, 10);
      EXPECT_TRUE(std::isnan(got.scale) && std::isnan(got.norm));
    }
    doubles[10][32] = static_cast<double>(bad);
    GradNorm<double> want;
    grad_norm_ref(d_list(), 1, &want);
    EXPECT_EQ(want.bad_tensor, 10);
    EXPECT_TRUE(std::isnan(want.scale));
  }
}

TEST_F(GradNormTest, LargestFloatsAreFinite) {
  for (auto& d : data) std::fill(d.begin(), d.end(), std::numeric_limits<float>::max());
  TestRun run(detect_isa(), 2);
  GradNorm<float> got;
  grad_norm(run.ctx, list(), 1, &got);
  EXPECT_EQ(got.bad_tensor, -1);
  EXPECT_TRUE(std::isfinite(got.norm) && got.scale > 0);
}

TEST_F(GradNormTest, Nothing) {
  TestRun run(detect_isa());
  GradNorm<float> got;
  grad_norm(run.ctx, {}, 1, &got);
  EXPECT_EQ(got.norm, 0);
  EXPECT_EQ(got.scale, 1);
}

}  // namespace
}  // namespace k3::ops
