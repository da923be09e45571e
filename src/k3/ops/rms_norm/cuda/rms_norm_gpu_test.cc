#include <gtest/gtest.h>

#include <algorithm>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/rms_norm/cuda/rms_norm_cuda.h"
#include "k3/ops/rms_norm/rms_norm.h"

namespace k3::ops::cuda {
namespace {

constexpr double kTolerance = 3e-3;  // one rounding to BF16

struct Case {
  int64_t tokens = 1, width = 64;
  bool delta = false, weight_bf16 = false, in_place = false;
  int64_t pad = 0;
  float scale = 1;
};

double run(const Case& c) {
  const int64_t stride = c.width + c.pad, count = c.tokens * stride;
  std::vector<float> x = random_bf16(count, 1, c.scale), delta = random_bf16(count, 2, c.scale),
                     weight = random_bf16(c.width, 3);
  std::vector<float> sum = x, want(static_cast<size_t>(c.tokens * c.width)), got;
  if (c.delta) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = round_to_bf16(x[i] + delta[i]);
  }
  rms_norm_ref(matrix(sum.data(), c.tokens, c.width, stride), Tensor(weight.data(), DType::f32, {c.width}), 1e-5F,
               matrix(want.data(), c.tokens, c.width));
  const DeviceArray<uint16_t> d_x(to_bf16(x)), d_delta(to_bf16(delta)), d_weight_bf16(to_bf16(weight)), d_sum(count),
      d_out(count);
  const DeviceArray<float> d_weight(weight);
  const auto& out = c.in_place ? d_delta : d_out;
  const auto& sum_out = c.in_place ? d_x : d_sum;
  const CudaStatus status =
      rms_norm_cuda({.tokens = c.tokens,
                     .width = c.width,
                     .x = d_x.data(),
                     .x_stride = stride,
                     .delta = c.delta ? d_delta.data() : nullptr,
                     .delta_stride = stride,
                     .sum_out = c.delta ? sum_out.data() : nullptr,
                     .sum_out_stride = stride,
                     .weight = c.weight_bf16 ? static_cast<const void*>(d_weight_bf16.data()) : d_weight.data(),
                     .weight_bf16 = c.weight_bf16,
                     .out = out.data(),
                     .out_stride = stride},
                    nullptr);
  EXPECT_TRUE(status.ok());
  gpu_sync();
  const std::vector<float> rows = from_bf16(out.get()), sums = from_bf16(sum_out.get());
  bool exact = true;
  for (int64_t t = 0; t < c.tokens; ++t) {
    got.insert(got.end(), rows.begin() + t * stride, rows.begin() + t * stride + c.width);
    if (c.delta)
      exact = exact && std::equal(sum.begin() + t * stride, sum.begin() + t * stride + c.width, sums.begin() + t * stride);
  }
  const double ratio = norm_ratio(got, want);
  const std::string name = fmt::format("T={} N={} delta={} bf16={} in_place={} pad={}", c.tokens, c.width, c.delta,
                                       c.weight_bf16, c.in_place, c.pad);
  EXPECT_LE(ratio, kTolerance) << name;
  EXPECT_TRUE(exact) << name;
  for (const auto* array : {&d_x, &d_delta, &d_sum, &d_out}) EXPECT_TRUE(array->guards_intact()) << name;
  return ratio;
}

TEST(RmsNormGpu, SanitizeSmallestShapes) {
  K3_NEEDS_GPU();
  for (const int64_t width : {8, 40, 264, 520}) {
    run({.tokens = 3, .width = width, .delta = true, .pad = 8});
    run({.tokens = 1, .width = width, .weight_bf16 = true});
  }
}

TEST(RmsNormGpu, EveryPlan) {
  K3_NEEDS_GPU();
  double worst = 0;
  for (const int64_t tokens : {1, 5, 300, 531}) {
    for (const int64_t width : {64, 128, 264, 512, 2304, 3584, 7168}) {
      if (tokens * width > 1'500'000) continue;
      worst = std::max(worst, run({.tokens = tokens, .width = width, .delta = true, .in_place = true}));
      worst = std::max(worst, run({.tokens = tokens, .width = width, .weight_bf16 = true, .pad = 16}));
    }
  }
  worst = std::max(worst, run({.tokens = 270, .width = 7168, .delta = true, .pad = 8}));
  worst = std::max(worst, run({.tokens = 2, .width = 65536, .delta = true}));
  worst = std::max(worst, run({.tokens = 300, .width = 65536 / 8}));
  worst = std::max(worst, run({.tokens = 3, .width = 256, .scale = 1e-3F}));  // epsilon matters
  fmt::print("rms_norm: worst norm ratio {:.2e}\n", worst);
}

}  // namespace
}  // namespace k3::ops::cuda
