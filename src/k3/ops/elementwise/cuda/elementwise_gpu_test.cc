#include <gtest/gtest.h>

#include <algorithm>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/elementwise/cuda/elementwise_cuda.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/embedding/cuda/embedding_cuda.h"

namespace k3::ops::cuda {
namespace {

struct Shape {
  int64_t rows, width, pad;
};
const std::vector<Shape> kShapes = {{1, 8, 0}, {1, 7168, 0}, {5, 40, 8}, {33, 264, 16}, {300, 7168, 8}};
const std::vector<Shape> kOddShapes = {{1, 3, 0}, {7, 60, 0}, {5, 40, 3}};  // the gate alone

TEST(ElementwiseGpu, SanitizeAddIsOneRounding) {
  K3_NEEDS_GPU();
  for (const Shape& s : kShapes) {
    const int64_t stride = s.width + s.pad;
    const std::vector<float> x = random_bf16(s.rows * stride, 1), y = random_bf16(s.rows * stride, 2, 3.0F);
    const DeviceArray<uint16_t> d_x(to_bf16(x)), d_y(to_bf16(y));
    ASSERT_TRUE(add_cuda({s.rows, s.width, d_x.data(), stride, d_y.data(), stride, d_y.data(), stride}, nullptr).ok());
    std::vector<float> want = y;
    for (size_t i = 0; i < want.size(); ++i) {
      if (static_cast<int64_t>(i) % stride < s.width) want[i] = round_to_bf16(x[i] + y[i]);
    }
    EXPECT_TRUE(from_bf16(d_y.get()) == want) << s.rows << " " << s.width;
    EXPECT_TRUE(d_y.guards_intact());
  }
}

TEST(ElementwiseGpu, SanitizeSigmoidGate) {
  K3_NEEDS_GPU();
  std::vector<Shape> shapes = kShapes;
  shapes.insert(shapes.end(), kOddShapes.begin(), kOddShapes.end());
  for (const Shape& s : shapes) {
    const int64_t stride = s.width + s.pad;
    std::vector<float> gate = random_bf16(s.rows * stride, 1, 8.0F), y = random_bf16(s.rows * stride, 2);
    gate[0] = 200, gate[1] = -200, gate[2] = -80;
    const DeviceArray<uint16_t> d_gate(to_bf16(gate)), d_y(to_bf16(y)), out(s.rows * stride);
    ASSERT_TRUE(
        sigmoid_gate_cuda({s.rows, s.width, d_gate.data(), stride, d_y.data(), stride, out.data(), stride}, nullptr).ok());
    const std::vector<float> all = from_bf16(out.get());
    std::vector<float> got, want;
    for (size_t i = 0; i < all.size(); ++i) {
      if (static_cast<int64_t>(i) % stride >= s.width) continue;
      got.push_back(all[i]);
      want.push_back(static_cast<float>(static_cast<double>(y[i]) / (1 + std::exp(-static_cast<double>(gate[i])))));
    }
    EXPECT_LE(norm_ratio(got, want), 3e-3) << s.rows << " " << s.width;
    EXPECT_NEAR(got[2] / want[2], 1, 0x1p-8);  // 1.8e-35: the divisor is large, not infinite
    EXPECT_LE(std::abs(got[1]), 1e-37F);
    EXPECT_TRUE(out.guards_intact());
  }
}

TEST(ElementwiseGpu, SanitizeCasts) {
  K3_NEEDS_GPU();
  for (const Shape& s : kShapes) {
    const int64_t stride = s.width + s.pad, count = s.rows * stride;
    const std::vector<float> x = random_normal(count, 1, 100.0F);
    const DeviceArray<float> f32(x), f32_out(count), f32_copy(count);
    const DeviceArray<uint16_t> bf16(count), bf16_copy(count);
    ASSERT_TRUE(convert_cuda({s.rows, s.width, f32.data(), stride, true, bf16.data(), stride, false}, nullptr).ok());
    ASSERT_TRUE(convert_cuda({s.rows, s.width, bf16.data(), stride, false, f32_out.data(), stride, true}, nullptr).ok());
    ASSERT_TRUE(convert_cuda({s.rows, s.width, bf16.data(), stride, false, bf16_copy.data(), stride, false}, nullptr).ok());
    ASSERT_TRUE(convert_cuda({s.rows, s.width, f32.data(), stride, true, f32_copy.data(), stride, true}, nullptr).ok());
    const auto a = bf16.get(), b = bf16_copy.get();
    const auto c = f32_out.get(), d = f32_copy.get();
    bool same = true;
    for (size_t i = 0; i < x.size(); ++i) {
      if (static_cast<int64_t>(i) % stride >= s.width) continue;
      same = same && a[i] == float_to_bf16(x[i]) && b[i] == a[i] && c[i] == bf16_to_float(a[i]) && d[i] == x[i];
    }
    EXPECT_TRUE(same) << s.rows << " " << s.width;
    EXPECT_TRUE(bf16.guards_intact() && bf16_copy.guards_intact() && f32_out.guards_intact() && f32_copy.guards_intact());
  }
}

TEST(EmbeddingGpu, SanitizeRowsAndIdsOutOfRange) {
  K3_NEEDS_GPU();
  for (const int64_t hidden : {8, 264, 7168}) {
    constexpr int64_t kVocab = 50;
    const int64_t stride = hidden + 8;
    const std::vector<uint16_t> table = to_bf16(random_normal(kVocab * stride, 1));
    const std::vector<int32_t> ids = {0, 49, 50, 7, -1, 7, 2'000'000'000, INT32_MIN, 3};
    const auto tokens = static_cast<int64_t>(ids.size());
    const DeviceArray<uint16_t> d_table(table), out(tokens * hidden);
    const DeviceArray<int32_t> d_ids(ids);
    ASSERT_TRUE(embedding_cuda({.tokens = tokens,
                                .hidden = hidden,
                                .vocab = kVocab,
                                .table = d_table.data(),
                                .table_stride = stride,
                                .ids = d_ids.data(),
                                .out = out.data(),
                                .out_stride = hidden},
                               nullptr)
                    .ok());
    const std::vector<uint16_t> got = out.get();
    std::vector<uint16_t> want(got.size(), 0);
    for (size_t t = 0; t < ids.size(); ++t) {
      if (ids[t] < 0 || ids[t] >= kVocab) continue;
      std::copy_n(table.begin() + ids[t] * stride, hidden, want.begin() + static_cast<int64_t>(t) * hidden);
    }
    EXPECT_TRUE(got == want) << hidden;
    EXPECT_TRUE(out.guards_intact());
  }
}

}  // namespace
}  // namespace k3::ops::cuda
