#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "k3/ops/optim/adamw/adamw.h"
#include "k3/ops/optim/cuda/optim_gpu_test_util.h"
#include "k3/ops/optim/fake_quant/fake_quant.h"
#include "k3/ops/optim/grad_norm/grad_norm.h"
#include "k3/ops/optim/optim_cases.h"
#include "k3/ops/optim/optim_test_util.h"
#include "k3/ops/optim/qk_clip/qk_clip.h"
#include "k3/ops/optim/quantile/quantile.h"

namespace k3::ops::cuda {
namespace {

struct AdamwParameter {
  std::vector<float> weight, first, second, grad;
  DeviceArray<float> d_weight, d_first, d_second, d_grad;
  DeviceArray<uint16_t> d_bf16;
  explicit AdamwParameter(int64_t count)
      : weight(random_normal(count, 1)), first(random_normal(count, 2, 0.1F)), second(random_normal(count, 3, 0.1F)), grad(random_normal(count, 4)) {
    for (float& v : second) v *= v;
    d_weight = DeviceArray<float>(weight), d_first = DeviceArray<float>(first), d_second = DeviceArray<float>(second);
    d_grad = DeviceArray<float>(grad), d_bf16 = DeviceArray<uint16_t>(count);
  }
};

TEST(OptimGpu, SanitizeAdamw) {
  K3_NEEDS_GPU();
  GpuRun run;
  std::vector<AdamwParameter> parameters;
  for (int i = 0; i < 5; ++i) {
    for (const int64_t count : flat_cases()) parameters.emplace_back(count);  // more than a launch lists
  }
  std::vector<AdamwTensor<float>> list;
  for (AdamwParameter& p : parameters) {
    list.push_back({p.d_weight.data(), p.d_first.data(), p.d_second.data(), p.d_grad.data(), p.d_bf16.data(), static_cast<int64_t>(p.weight.size()), 0.01, 0.1});
  }
  AdamwParameter odd(1001);  // rows that are not aligned
  list.push_back({odd.d_weight.data() + 1, odd.d_first.data() + 1, odd.d_second.data() + 1, odd.d_grad.data() + 1, odd.d_bf16.data() + 1, 1000, 0.01, 0.1});
  const float scale = 0.37F;
  const double d_scale = static_cast<double>(scale);
  const DeviceArray<float> gpu_scale(std::vector<float>{scale});
  adamw(run.ctx, list, {.step = 7}, gpu_scale.data());
  run.finish();
  parameters.push_back(std::move(odd));
  for (size_t k = 0; k < parameters.size(); ++k) {
    const AdamwParameter& p = parameters[k];
    std::vector<double> w = to_doubles(p.weight), m = to_doubles(p.first), v = to_doubles(p.second);
    const std::vector<double> g = to_doubles(p.grad);
    const int64_t skip = k + 1 == parameters.size() ? 1 : 0;
    const AdamwTensor<double> t{w.data() + skip, m.data() + skip, v.data() + skip, g.data() + skip, nullptr, static_cast<int64_t>(w.size()) - skip, 0.01, 0.1};
    adamw_ref({&t, 1}, {.step = 7}, &d_scale);
    const std::vector<float> got = p.d_weight.get(), got_m = p.d_first.get(), got_v = p.d_second.get();
    const std::vector<uint16_t> bf16 = p.d_bf16.get();
    for (auto i = static_cast<size_t>(skip); i < w.size(); ++i) {
      const double update = std::abs(w[i] - static_cast<double>(p.weight[i]));
      ASSERT_NEAR(got[i], w[i], 2e-7 * std::abs(w[i]) + 2e-6 * (update + 0.01)) << k << " " << i;
      ASSERT_NEAR(got_m[i], m[i], 3e-7 * (std::abs(m[i]) + std::abs(static_cast<double>(p.first[i])) + std::abs(g[i])));
      ASSERT_NEAR(got_v[i], v[i], 3e-7 * v[i]);
      ASSERT_EQ(bf16[i], float_to_bf16(got[i]));
    }
    EXPECT_TRUE(p.d_weight.guards_intact() && p.d_first.guards_intact() && p.d_second.guards_intact() && p.d_bf16.guards_intact());
  }
}

TEST(OptimGpu, SanitizeGradNorm) {
  K3_NEEDS_GPU();
  GpuRun run;
  std::vector<std::vector<float>> data;
  for (int i = 0; i < 9; ++i) {
    for (const int64_t count : flat_cases()) data.push_back(random_normal(count, static_cast<uint64_t>(count + i), 0.02F));
  }
  std::vector<DeviceArray<float>> arrays;
  std::vector<GradTensor<float>> list;
  std::vector<std::vector<double>> doubles;
  std::vector<GradTensor<double>> d_list;
  for (const auto& d : data) {
    arrays.emplace_back(d);
    list.push_back({arrays.back().data(), arrays.back().size()});
    doubles.push_back(to_doubles(d));
    d_list.push_back({doubles.back().data(), arrays.back().size()});
  }
  GradNorm<double> want;
  grad_norm_ref(d_list, 1, &want);
  const DeviceArray<GradNorm<float>> out(1);
  ops::grad_norm(run.ctx, list, 1, out.data());
  run.finish();
  const GradNorm<float> got = out.get()[0];
  EXPECT_NEAR(got.norm, want.norm, 1e-12 * want.norm);
  EXPECT_EQ(got.scale, static_cast<float>(want.scale));
  EXPECT_EQ(got.bad_tensor, -1);
  ops::grad_norm(run.ctx, list, 1, out.data());
  run.finish();
  EXPECT_EQ(out.get()[0].norm, got.norm);
  for (const size_t bad : {size_t{149}, size_t{16}}) {
    data[bad].back() = bad == 16 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    arrays[bad].set(data[bad]);
    ops::grad_norm(run.ctx, list, 1, out.data());
    run.finish();
    EXPECT_EQ(out.get()[0].bad_tensor, static_cast<int32_t>(bad));
    EXPECT_TRUE(std::isnan(out.get()[0].scale));
  }
}

TEST(OptimGpu, SanitizeQkClip) {
  K3_NEEDS_GPU();
  GpuRun run;
  const int64_t heads = 5, nope = 13, rope = 6, value = 9, q_cols = 33, kv_cols = 70;
  std::vector<float> q = random_normal(heads * (nope + rope) * q_cols, 1), kv = random_normal(heads * (nope + value) * kv_cols, 2), gamma(5);
  const std::vector<float> logits = {400, 99, 150, std::numeric_limits<float>::quiet_NaN(), 100};
  const DeviceArray<float> d_q(q), d_kv(kv), d_logits(logits), d_gamma(heads);
  const DeviceArray<uint16_t> q_bf16(d_q.size()), kv_bf16(d_kv.size());
  qk_clip(run.ctx, {heads, nope, rope, value, d_q.data(), q_bf16.data(), q_cols, d_kv.data(), kv_bf16.data(), kv_cols, d_logits.data(), d_gamma.data(), 100});
  run.finish();
  TestRun cpu(Isa::scalar);
  ops::qk_clip(cpu.ctx, {heads, nope, rope, value, q.data(), nullptr, q_cols, kv.data(), nullptr, kv_cols, logits.data(), gamma.data(), 100});
  EXPECT_EQ(d_q.get(), q);
  EXPECT_EQ(d_kv.get(), kv);
  EXPECT_EQ(d_gamma.get(), gamma);
  EXPECT_EQ(q_bf16.get()[5], float_to_bf16(q[5]));
  EXPECT_TRUE(d_q.guards_intact() && d_kv.guards_intact() && d_gamma.guards_intact());
}

TEST(OptimGpu, SanitizeQuantileEqualsTheCpuToTheBit) {
  K3_NEEDS_GPU();
  GpuRun run;
  for (const auto& [tokens, experts, topk] : {std::array<int64_t, 3>{1, 2, 1}, {3, 5, 4}, {17, 16, 4}, {300, 31, 8}, {5000, 32, 4}, {100, 100, 16},
                                              {64, 896, 16}, {20, 1025, 40}}) {
    const int64_t stride = experts + 3;
    std::vector<float> scores = random_normal(tokens * stride, 1), bias = random_normal(experts, 2, 0.1F);
    for (float& s : scores) s = 1 / (1 + std::exp(-s));
    scores[0] = std::numeric_limits<float>::quiet_NaN();
    std::vector<uint8_t> valid(static_cast<size_t>(tokens));
    for (size_t i = 0; i < valid.size(); ++i) valid[i] = i % 5 != 4;
    std::vector<int32_t> want(static_cast<size_t>(experts * kQuantileBins));
    const QuantileInput<float> in{scores.data(), tokens, experts, stride, topk, bias.data(), valid.data()};
    quantile_accumulate_ref(in, want.data());
    const DeviceArray<float> d_scores(scores), d_bias(bias);
    const DeviceArray<uint8_t> d_valid(valid);
    const DeviceArray<int32_t> histogram(experts * kQuantileBins);
    histogram.zero();
    ops::quantile_accumulate(run.ctx, {d_scores.data(), tokens, experts, stride, topk, d_bias.data(), d_valid.data()}, histogram.data());
    run.finish();
    EXPECT_EQ(histogram.get(), want) << tokens << " " << experts << " " << topk;
    ops::quantile_update(run.ctx, experts, topk, 0.3, histogram.data(), d_bias.data());
    run.finish();
    quantile_update_ref(experts, topk, 0.3, want.data(), bias.data());
    const std::vector<float> got = d_bias.get();
    for (size_t e = 0; e < bias.size(); ++e) ASSERT_NEAR(got[e], bias[e], 1e-7 + 1e-7 * std::abs(static_cast<double>(bias[e])));
    EXPECT_EQ(histogram.get(), want);  // zeros
    ops::quantile_update(run.ctx, experts, topk, 0.3, histogram.data(), d_bias.data());  // nothing was counted
    run.finish();
    EXPECT_EQ(d_bias.get(), got);
    EXPECT_TRUE(histogram.guards_intact() && d_bias.guards_intact());
  }
}

TEST(OptimGpu, SanitizeLoadsAndSignUpdate) {
  K3_NEEDS_GPU();
  GpuRun run;
  const int64_t tokens = 1001, topk = 3, experts = 37;
  std::vector<int32_t> ids(static_cast<size_t>(tokens * topk)), load(static_cast<size_t>(experts), 5);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * i % static_cast<size_t>(experts));
  std::vector<uint8_t> valid(static_cast<size_t>(tokens), 1);
  valid[7] = valid[500] = 0;
  const DeviceArray<int32_t> d_ids(ids), d_load(load);
  const DeviceArray<uint8_t> d_valid(valid);
  expert_load(run.ctx, d_ids.data(), tokens, topk, experts, d_valid.data(), d_load.data());
  TestRun cpu(Isa::scalar);
  ops::expert_load(cpu.ctx, ids.data(), tokens, topk, experts, valid.data(), load.data());
  run.finish();
  EXPECT_EQ(d_load.get(), load);
  std::vector<float> bias = random_normal(experts, 3);
  const DeviceArray<float> d_bias(bias);
  sign_balance(run.ctx, d_load.data(), experts, 0.001, d_bias.data());
  ops::sign_balance(cpu.ctx, load.data(), experts, 0.001, bias.data());
  run.finish();
  EXPECT_EQ(d_bias.get(), bias);
}

TEST(OptimGpu, SanitizeFakeQuantEqualsTheCpuToTheBit) {
  K3_NEEDS_GPU();
  GpuRun run;
  const int64_t rows = 37, cols = 160, stride = 168;
  std::vector<float> in = random_normal(rows * stride, 1);
  for (size_t i = 0; i < in.size(); ++i) in[i] = std::ldexp(in[i], static_cast<int>(i / 32 % 240) - 130);
  for (size_t i = 0; i < 32; ++i) in[320 + i] = std::ldexp(std::round(in[i] * 4), -3);
  in[5 * 168 + 40] = std::numeric_limits<float>::quiet_NaN();
  in[6 * 168 + 40] = std::numeric_limits<float>::infinity();
  in[7 * 168 + 40] = 3e38F;
  std::fill_n(in.begin() + 8 * 168, 32, -0.0F);
  const DeviceArray<float> d_in(in);
  const DeviceArray<uint16_t> narrow(to_bf16(in));
  TestRun cpu(Isa::scalar);
  const auto same = [&](const std::vector<float>& got, const std::vector<float>& want, const char* what) {
    for (size_t i = 0; i < want.size(); ++i) {
      if (static_cast<int64_t>(i) % stride >= cols || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << what << " at " << i;
    }
  };
  for (const auto fn : {ops::mxfp4_fake_quant, ops::mxfp8_fake_quant}) {
    const char* what = fn == ops::mxfp4_fake_quant ? "mxfp4" : "mxfp8";
    for (const bool in_f32 : {true, false}) {
      std::vector<float> from = in_f32 ? in : from_bf16(narrow.get()), want(in.size());
      fn(cpu.ctx, matrix(from.data(), rows, cols, stride), matrix(want.data(), rows, cols, stride));
      Tensor source(in_f32 ? static_cast<void*>(d_in.data()) : narrow.data(), in_f32 ? DType::f32 : DType::bf16, {rows, cols});
      source.strides[0] = stride;
      const DeviceArray<float> wide(rows * stride);
      const DeviceArray<uint16_t> half(rows * stride);
      Tensor to(wide.data(), DType::f32, {rows, cols}), to_half(half.data(), DType::bf16, {rows, cols});
      to.strides[0] = to_half.strides[0] = stride;
      fn(run.ctx, source, to);
      fn(run.ctx, source, to_half);
      run.finish();
      same(wide.get(), want, what);
      for (float& w : want) w = round_to_bf16(w);
      same(from_bf16(half.get()), want, what);
      EXPECT_TRUE(wide.guards_intact() && half.guards_intact());
    }
  }
}

}  // namespace
}  // namespace k3::ops::cuda
