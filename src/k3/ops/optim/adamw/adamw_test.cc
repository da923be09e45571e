#include "k3/ops/optim/adamw/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "k3/ops/optim/optim_cases.h"
#include "k3/ops/optim/optim_test_util.h"

namespace k3::ops {
namespace {

// One parameter in FP32 and in double.
struct Parameter {
  std::vector<float> weight, first, second, grad;
  std::vector<uint16_t> bf16;
  std::vector<double> d_weight, d_first, d_second, d_grad;
  double lr, decay;
  Parameter(int64_t count, uint64_t seed, double lr_, double decay_)
      : weight(random_normal(count, seed)), first(random_normal(count, seed + 1, 0.1F)), second(random_normal(count, seed + 2, 0.1F)),
        grad(random_normal(count, seed + 3)), bf16(static_cast<size_t>(count)), lr(lr_), decay(decay_) {
    for (float& v : second) v *= v;
    d_weight = to_doubles(weight), d_first = to_doubles(first), d_second = to_doubles(second), d_grad = to_doubles(grad);
  }
  AdamwTensor<float> tensor() {
    return {weight.data(), first.data(), second.data(), grad.data(), bf16.data(), static_cast<int64_t>(weight.size()), lr, decay};
  }
  AdamwTensor<double> d_tensor() {
    return {d_weight.data(), d_first.data(), d_second.data(), d_grad.data(), nullptr, static_cast<int64_t>(weight.size()), lr, decay};
  }
};

void expect_close(const Parameter& p, const Parameter& before) {
  for (size_t i = 0; i < p.weight.size(); ++i) {
    const double update = std::abs(p.d_weight[i] - static_cast<double>(before.weight[i]));
    ASSERT_NEAR(p.first[i], p.d_first[i], 3e-7 * (std::abs(p.d_first[i]) + std::abs(static_cast<double>(before.first[i])) + std::abs(p.d_grad[i]))) << i;
    ASSERT_NEAR(p.second[i], p.d_second[i], 3e-7 * p.d_second[i]) << i;
    ASSERT_NEAR(p.weight[i], p.d_weight[i], 2e-7 * std::abs(p.d_weight[i]) + 2e-6 * (update + 0.01)) << i;
    ASSERT_EQ(p.bf16[i], float_to_bf16(p.weight[i])) << i;
  }
}

TEST(Adamw, EverySizeEveryIsaAgainstDouble) {
  for (const Isa isa : test_isas()) {
    TestRun run(isa, 2);
    std::vector<Parameter> parameters, before;
    std::vector<AdamwTensor<float>> list;
    std::vector<AdamwTensor<double>> d_list;
    for (const int64_t count : flat_cases()) parameters.emplace_back(count, 10 * static_cast<uint64_t>(count), 0.01, count % 2 == 0 ? 0.1 : 0.0);
    before = parameters;
    for (Parameter& p : parameters) list.push_back(p.tensor()), d_list.push_back(p.d_tensor());
    const float scale = 0.37F;
    const double d_scale = static_cast<double>(scale);
    adamw(run.ctx, list, {.step = 7}, &scale);
    adamw_ref(d_list, {.step = 7}, &d_scale);
    for (size_t i = 0; i < parameters.size(); ++i) expect_close(parameters[i], before[i]);
  }
}

// The update of the first step is lr * sign(g) whatever the gradient's size; later ones follow the recurrence by hand.
TEST(Adamw, ByHand) {
  std::vector<double> w = {1, -2}, m(2), v(2), g = {1e-3, -50};
  const AdamwTensor<double> t{w.data(), m.data(), v.data(), g.data(), nullptr, 2, 0.1, 0.5};
  adamw_ref({&t, 1}, {.step = 1});
  EXPECT_NEAR(w[0], 1 * 0.95 - 0.1, 1e-5);
  EXPECT_NEAR(w[1], -2 * 0.95 + 0.1, 1e-9);
  const double before = w[0];
  adamw_ref({&t, 1}, {.step = 2});
  const double mean = (0.9 * 0.1 + 0.1) * 1e-3 / (1 - 0.81), square = (0.95 * 0.05 + 0.05) * 1e-6 / (1 - 0.95 * 0.95);
  EXPECT_NEAR(w[0], before * 0.95 - 0.1 * mean / (std::sqrt(square) + 1e-8), 1e-12);
}

TEST(Adamw, BadGradientChangesNothing) {
  TestRun run(detect_isa());
  Parameter p(100, 1, 0.1, 0.1);
  const Parameter before = p;
  const AdamwTensor<float> t = p.tensor();
  const float bad = std::numeric_limits<float>::quiet_NaN();
  adamw(run.ctx, {&t, 1}, {}, &bad);
  EXPECT_EQ(p.weight, before.weight);
  EXPECT_EQ(p.first, before.first);
}

TEST(Adamw, ThreadsChangeNoBit) {
  std::vector<float> want;
  for (const int threads : {1, 2, 3}) {
    TestRun run(detect_isa(), threads);
    Parameter p(100000, 5, 0.01, 0.1);
    const AdamwTensor<float> t = p.tensor();
    adamw(run.ctx, {&t, 1}, {.step = 3});
    if (want.empty()) want = p.weight;
    EXPECT_EQ(p.weight, want);
  }
}

TEST(Adamw, NoCopyAndNothingAtAll) {
  TestRun run(detect_isa());
  adamw(run.ctx, {}, {});
  Parameter p(33, 9, 0.01, 0);
  AdamwTensor<float> t = p.tensor();
  t.bf16 = nullptr;
  adamw(run.ctx, {&t, 1}, {});
  for (const uint16_t b : p.bf16) EXPECT_EQ(b, 0);
}

}  // namespace
}  // namespace k3::ops
