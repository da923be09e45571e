#include <gtest/gtest.h>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/rms_norm/cuda/gated_norm_cuda.h"
#include "k3/ops/rms_norm/rms_norm.h"

namespace k3::ops::cuda {
namespace {

constexpr float kEps = 1e-5F;

void check(int64_t tokens, int64_t heads, int64_t extra) {
  SCOPED_TRACE(fmt::format("{} tokens, {} heads", tokens, heads));
  const int64_t width = heads * 128, stride = width + extra;
  std::vector<float> x = random_bf16(tokens * stride, 1, 3), gate = random_bf16(tokens * stride, 2, 4), weight = random_normal(128, 3);
  const DeviceArray<uint16_t> dx(to_bf16(x)), dg(to_bf16(gate)), out(tokens * stride), rest(tokens * stride);
  const DeviceArray<float> dw(weight);
  const GatedNorm args{tokens, heads, dx.data(), stride, dg.data(), stride, dw.data(), kEps, out.data(), stride, rest.data()};
  ASSERT_TRUE(gated_norm_cuda(args, nullptr).ok());
  const std::vector<float> got = from_bf16(out.get()), cut = from_bf16(rest.get());
  std::vector<float> a, b, c, d, want(static_cast<size_t>(tokens * width));
  for (int64_t t = 0; t < tokens; ++t) {
    const auto row = [&](std::vector<float>& to, const std::vector<float>& from) {
      to.insert(to.end(), from.begin() + t * stride, from.begin() + t * stride + width);
    };
    row(a, x), row(b, gate), row(c, got), row(d, cut);
  }
  if (tokens > 0) {
    gated_rms_norm_ref(Tensor(a.data(), DType::f32, {tokens, heads, 128}), Tensor(weight.data(), DType::f32, {128}),
                       Tensor(b.data(), DType::f32, {tokens, heads, 128}), kEps, Tensor(want.data(), DType::f32, {tokens, heads, 128}));
  }
  EXPECT_LE(norm_ratio(c, want), 3e-3);
  for (size_t i = 0; i < c.size(); ++i) d[i] += c[i];
  EXPECT_LE(norm_ratio(d, want), 5e-5);
  const DeviceArray<uint16_t> alone(tokens * stride);
  GatedNorm without = args;
  without.out = alone.data(), without.out_rest = nullptr;
  ASSERT_TRUE(gated_norm_cuda(without, nullptr).ok());
  EXPECT_EQ(alone.get(), out.get());
  EXPECT_TRUE(out.guards_intact() && rest.guards_intact() && alone.guards_intact());
}

TEST(GatedNormGpu, AgainstTheReference) {
  K3_NEEDS_GPU();
  for (const int64_t tokens : {0, 1, 3, 100}) {
    for (const int64_t heads : {1, 4, 12, 96}) check(tokens, heads, 8);
  }
}

TEST(GatedNormGpu, Sanitize) {
  K3_NEEDS_GPU();
  check(1, 1, 0);
  check(3, 3, 4);
}

}  // namespace
}  // namespace k3::ops::cuda
