#include "k3/ops/optim/qk_clip/qk_clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "k3/ops/optim/optim_test_util.h"

namespace k3::ops {
namespace {

struct Heads {
  int64_t heads = 3, nope = 5, rope = 3, value = 4, q_cols = 7, kv_cols = 9;
  std::vector<float> q = random_normal(heads * (nope + rope) * q_cols, 1), kv = random_normal(heads * (nope + value) * kv_cols, 2);
  std::vector<uint16_t> q_bf16 = std::vector<uint16_t>(q.size()), kv_bf16 = std::vector<uint16_t>(kv.size());
  std::vector<float> gamma = std::vector<float>(3);

  QkClip<float> args(const std::vector<float>& logits, double tau) {
    return {heads, nope, rope, value, q.data(), q_bf16.data(), q_cols, kv.data(), kv_bf16.data(), kv_cols, logits.data(), gamma.data(), tau};
  }
  // q . k of head h for query input x, latent y and the shared part of the key.
  double logit(int64_t h, const std::vector<float>& x, const std::vector<float>& y, const std::vector<float>& shared) const {
    double sum = 0;
    for (int64_t i = 0; i < nope + rope; ++i) {
      double a = 0, b = i < nope ? 0 : static_cast<double>(shared[static_cast<size_t>(i - nope)]);
      for (int64_t c = 0; c < q_cols; ++c) a += static_cast<double>(q[static_cast<size_t>((h * (nope + rope) + i) * q_cols + c)]) * static_cast<double>(x[static_cast<size_t>(c)]);
      for (int64_t c = 0; c < kv_cols && i < nope; ++c) b += static_cast<double>(kv[static_cast<size_t>((h * (nope + value) + i) * kv_cols + c)]) * static_cast<double>(y[static_cast<size_t>(c)]);
      sum += a * b;
    }
    return sum;
  }
};

TEST(QkClip, EveryLogitOfAHeadShrinksByGamma) {
  for (const int threads : {1, 2}) {
    Heads h;
    const Heads before = h;
    const std::vector<float> logits = {400, 99, 150}, x = random_normal(7, 5), y = random_normal(9, 6), shared = random_normal(3, 7);
    TestRun run(detect_isa(), threads);
    qk_clip(run.ctx, h.args(logits, 100));
    EXPECT_EQ(h.gamma, (std::vector<float>{0.25F, 1, 100.0F / 150}));
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(h.logit(i, x, y, shared), before.logit(i, x, y, shared) * static_cast<double>(h.gamma[static_cast<size_t>(i)]), 2e-6);
      for (int64_t j = (i * 9 + 5) * 9; j < (i * 9 + 9) * 9; ++j) EXPECT_EQ(h.kv[static_cast<size_t>(j)], before.kv[static_cast<size_t>(j)]);  // values
    }
    for (size_t j = 0; j < h.q.size(); ++j) {
      const size_t head = j / 56;
      EXPECT_EQ(h.q_bf16[j], head == 1 ? 0 : float_to_bf16(h.q[j]));
      if (head == 1) {
        EXPECT_EQ(h.q[j], before.q[j]);
      }
    }
  }
}

TEST(QkClip, AgainstDouble) {
  Heads h;
  std::vector<double> q = to_doubles(h.q), kv = to_doubles(h.kv), gamma(3);
  const std::vector<float> logits = {123.5F, 3e5F, 100.5F};
  const std::vector<double> d_logits = to_doubles(logits);
  TestRun run(detect_isa());
  qk_clip(run.ctx, h.args(logits, 100));
  qk_clip_ref({3, 5, 3, 4, q.data(), nullptr, 7, kv.data(), nullptr, 9, d_logits.data(), gamma.data(), 100});
  for (size_t i = 0; i < q.size(); ++i) EXPECT_NEAR(h.q[i], q[i], 2e-7 * std::abs(q[i]));
  for (size_t i = 0; i < kv.size(); ++i) EXPECT_NEAR(h.kv[i], kv[i], 2e-7 * std::abs(kv[i]));
}

TEST(QkClip, LeavesAloneWhatIsNotAboveTau) {
  Heads h;
  const Heads before = h;
  TestRun run(detect_isa());
  qk_clip(run.ctx, h.args({100, -5, std::numeric_limits<float>::quiet_NaN()}, 100));
  EXPECT_EQ(h.q, before.q);
  EXPECT_EQ(h.kv, before.kv);
  EXPECT_EQ(h.gamma, (std::vector<float>{1, 1, 1}));
}

}  // namespace
}  // namespace k3::ops
