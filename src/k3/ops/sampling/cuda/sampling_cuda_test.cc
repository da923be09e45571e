// The rule of sampling on the GPU, on the host: against Sampler, and its exact borders.
#include "k3/ops/sampling/cuda/sampling_cuda.h"

#include <gtest/gtest.h>

#include <cmath>

#include "k3/ops/sampling/sampling.h"
#include "k3/ops/test_util.h"

namespace k3::ops::cuda {
namespace {

TEST(SampleRule, ExpIsWithinTwoUlp) {
  EXPECT_EQ(sample_exp(0), 1);
  EXPECT_EQ(sample_exp(-33), 0);
  EXPECT_EQ(sample_exp(-std::numeric_limits<float>::infinity()), 0);
  EXPECT_EQ(sample_exp(NAN), 0);
  for (int i = 0; i <= 320000; ++i) {
    const float x = static_cast<float>(-i) * 1e-4F;
    const double want = std::exp(static_cast<double>(x));
    ASSERT_NEAR(static_cast<double>(sample_exp(x)), want, want * 0x1p-22) << x;
  }
}

TEST(SampleRule, AgreesWithSampler) {
  uint64_t seed = 1;
  for (const float temperature : {0.0F, 0.3F, 1.0F, 2.0F}) {
    for (const int32_t top_k : {0, 1, 5, 50, 1000000}) {
      for (const float top_p : {1.0F, 0.95F, 0.5F, 0.01F}) {
        for (const float min_p : {0.0F, 0.1F}) {
          const std::vector<float> x = random_normal(5000, ++seed, 2.0F);
          Sampler sampler({.temperature = temperature, .top_p = top_p, .top_k = top_k, .min_p = min_p, .seed = seed}, 5000);
          EXPECT_EQ(sample_rule(x, {temperature, top_p, min_p, top_k, Rng(seed, 0).uniform(0)}),
                    sampler.sample(x, {}, {}).value());
        }
      }
    }
  }
}

TEST(SampleRule, OfASamplersOwnRowAgreesWithIt) {
  Sampler sampler({.temperature = 0.8F, .top_p = 0.9F, .top_k = 100, .min_p = 0.01F, .seed = 9}, 300, 2);
  const std::vector<int32_t> prompt = {1, 2, 3};
  std::vector<int32_t> generated;
  for (uint64_t i = 0; i < 200; ++i) {
    const std::vector<float> x = random_normal(300, 100 + i, 2.0F);
    const int32_t want = sampler.sample(x, prompt, generated).value();
    EXPECT_EQ(sample_rule(x, *sampler.plain_row(i)), want) << i;
    generated.push_back(want);
  }
}

TEST(SampleRule, TiesAndEnds) {
  const std::vector<float> equal(10, 3.0F);
  EXPECT_EQ(sample_rule(equal, {1, 0.5F, 0, 0, 0.0}), 0);
  EXPECT_EQ(sample_rule(equal, {1, 0.5F, 0, 0, 1 - 0x1p-53}), 4);  // 5 of 10 hold half
  EXPECT_EQ(sample_rule(equal, {1, 1, 0, 3, 1 - 0x1p-53}), 2);
  EXPECT_EQ(sample_rule(equal, {1e-45F, 1, 0, 0, 1 - 0x1p-53}), 9);
  EXPECT_EQ(sample_rule(equal, {1, 1, 0, 0, 0.0}, std::vector<uint32_t>{0x38}), 3);
  EXPECT_EQ(sample_rule(equal, {1, 1, 0, 0, 0.0}, std::vector<uint32_t>{0}), -1);
  EXPECT_EQ(sample_rule(std::vector<float>{1, NAN}, {0, 1, 0, 0, 0.0}), -1);
}

TEST(ArgmaxCluster, FillsTheDeviceWithFewRows) {
  const DeviceInfo h200{.sm_count = 132, .capability = 90, .l2_bytes = 50 << 20, .shared_bytes_per_block = 232448};
  EXPECT_EQ(argmax_cluster(1, 163840, h200), 8);
  EXPECT_EQ(argmax_cluster(33, 163840, h200), 8);
  EXPECT_EQ(argmax_cluster(34, 163840, h200), 4);
  EXPECT_EQ(argmax_cluster(256, 163840, h200), 1);
  EXPECT_EQ(argmax_cluster(1, 100, h200), 1);
}

}  // namespace
}  // namespace k3::ops::cuda
