// The plain C functions against double: that they hand everything on as they say. What the kernels do is tested beside them.
#include "k3/ops/cuda/k3_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "k3/ops/cuda/gpu_test_util.h"
#include "k3/ops/moe/moe.h"
#include "k3/ops/situ_glu/situ_glu.h"

namespace k3::ops::cuda {
namespace {

TEST(K3KernelsGpu, SanitizeLinearAndAttnRes) {
  K3_NEEDS_GPU();
  const int64_t tokens = 3, columns = 64, rows = 40;
  const std::vector<float> x = random_bf16(tokens * columns, 1), w = random_bf16(rows * columns, 2);
  const DeviceArray<uint16_t> x_d(to_bf16(x)), w_d(to_bf16(w)), y(tokens * rows);
  ASSERT_EQ(k3_linear(x_d.data(), tokens, columns, w_d.data(), rows, y.data(), nullptr), 0);
  std::vector<double> want;
  for (int64_t i = 0; i < tokens * rows; ++i) {
    double sum = 0;
    for (int64_t c = 0; c < columns; ++c) {
      sum += static_cast<double>(x[static_cast<size_t>(i / rows * columns + c)]) * static_cast<double>(w[static_cast<size_t>(i % rows * columns + c)]);
    }
    want.push_back(sum);
  }
  EXPECT_LE(norm_ratio(std::span<const float>(from_bf16(y.get())), std::span<const double>(want)), 3e-3);

  const int64_t hidden = 64, blocks = 2;
  const std::vector<float> bank = random_bf16(blocks * tokens * hidden, 3), prefix = random_bf16(tokens * hidden, 4),
                           query = random_normal(hidden, 5), norm = random_normal(hidden, 6);
  const DeviceArray<uint16_t> bank_d(to_bf16(bank)), prefix_d(to_bf16(prefix)), out(tokens * hidden);
  const DeviceArray<float> query_d(query), norm_d(norm);
  const K3AttnRes a{tokens, hidden, blocks, bank_d.data(), prefix_d.data(), nullptr, nullptr, query_d.data(), norm_d.data(), 1e-5F, out.data()};
  ASSERT_EQ(k3_attn_res(&a, nullptr), 0);
  want.clear();
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<const float*> sources;
    for (int64_t b = 0; b < blocks; ++b) sources.push_back(bank.data() + (b * tokens + t) * hidden);
    sources.push_back(prefix.data() + t * hidden);
    std::vector<double> mix(static_cast<size_t>(hidden));
    double mass = 0;
    for (const float* s : sources) {
      double dot = 0, squares = 0;
      for (int64_t i = 0; i < hidden; ++i) {
        dot += static_cast<double>(s[i]) * static_cast<double>(query[static_cast<size_t>(i)]);
        squares += static_cast<double>(s[i]) * static_cast<double>(s[i]);
      }
      const double weight = std::exp(dot / std::sqrt(squares / static_cast<double>(hidden) + 1e-5));
      mass += weight;
      for (int64_t i = 0; i < hidden; ++i) mix[static_cast<size_t>(i)] += weight * static_cast<double>(s[i]);
    }
    double squares = 0;
    for (double& m : mix) m /= mass, squares += m * m;
    for (int64_t i = 0; i < hidden; ++i) {
      want.push_back(mix[static_cast<size_t>(i)] / std::sqrt(squares / static_cast<double>(hidden) + 1e-5) * static_cast<double>(norm[static_cast<size_t>(i)]));
    }
  }
  EXPECT_LE(norm_ratio(std::span<const float>(from_bf16(out.get())), std::span<const double>(want)), 3e-3);
}

// Routed by k3_router, packed by k3_experts_pack; few tokens take the streaming kernels, many the grouped ones.
void check_moe(int32_t tokens) {
  const int32_t experts = 5, width = 64, inter = 32, topk = 2;
  const std::vector<float> z = random_bf16(tokens * width, 1), logits = random_normal(tokens * experts, 2);
  std::vector<std::vector<float>> w;
  std::vector<DeviceArray<uint16_t>> w_d;
  for (int32_t i = 0; i < 3 * experts; ++i) {
    w.push_back(random_bf16(width * inter, 10 + static_cast<uint64_t>(i), 0.2F));
    w_d.emplace_back(to_bf16(w.back()));
  }
  const DeviceArray<uint8_t> w13(experts * k3_experts_packed_bytes(0, 2 * inter, width)), w2(experts * k3_experts_packed_bytes(0, width, inter));
  const DeviceArray<uint16_t> z_d(to_bf16(z)), out(int64_t{tokens} * width);
  const DeviceArray<float> logits_d(logits), gates(tokens * topk);
  const DeviceArray<int32_t> ids(tokens * topk);
  const K3Router r{logits_d.data(), nullptr, tokens, experts, topk, 1, 1.5F, ids.data(), gates.data()};
  ASSERT_EQ(k3_router(&r, nullptr), 0);
  K3Moe m{{0, experts, width, inter, w13.data(), w2.data(), nullptr}, 0, 1, 0, tokens, topk, 0, z_d.data(), ids.data(), gates.data(), out.data(), nullptr};
  for (int32_t e = 0; e < experts; ++e) {
    const auto at = static_cast<size_t>(3 * e);
    ASSERT_EQ(k3_experts_pack(&m.weights, e, w_d[at].data(), w_d[at + 1].data(), w_d[at + 2].data(), nullptr, nullptr, nullptr, nullptr), 0);
  }
  const DeviceArray<uint8_t> workspace(k3_moe_workspace(&m));
  workspace.zero();
  m.workspace = workspace.data();
  ASSERT_EQ(k3_moe(&m, nullptr), 0);
  std::vector<ExpertWeights> weights;
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
    const auto weight = [&](size_t i, int64_t rows, int64_t cols) { return Weight{w[3 * e + i].data(), nullptr, Scheme::f32, rows, cols}; };
    weights.push_back({weight(0, inter, width), weight(1, width, inter), weight(2, inter, width)});
  }
  std::vector<float> z_copy = z, want(z.size()), gates_host = gates.get();
  std::vector<int32_t> ids_host = ids.get();
  moe_ref(Tensor(z_copy.data(), DType::f32, {tokens, width}), Tensor(ids_host.data(), DType::i32, {tokens, topk}),
          Tensor(gates_host.data(), DType::f32, {tokens, topk}), weights, Glu(), true, Tensor(want.data(), DType::f32, {tokens, width}));
  EXPECT_LE(norm_ratio(from_bf16(out.get()), want), 4e-3) << tokens;
}

TEST(K3KernelsGpu, SanitizeRouterAndExperts) {
  K3_NEEDS_GPU();
  check_moe(3);
  check_moe(260);
}

}  // namespace
}  // namespace k3::ops::cuda
