// The loss and its gradients against plain loops in double, over sizes with tails of the chunk and of the vectors.
#include "k3/ops/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include "k3/ops/tape.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

struct Wanted {
  double nats = 0;
  std::vector<double> dx, dhead;
};

Wanted reference(const std::vector<float>& x, const std::vector<float>& head, std::span<const int32_t> targets, size_t width, double scale) {
  const size_t tokens = targets.size(), vocab = head.size() / width;
  Wanted out{0, std::vector<double>(x.size()), std::vector<double>(head.size())};
  std::vector<double> logits(vocab);
  for (size_t t = 0; t < tokens; ++t) {
    if (targets[t] < 0) continue;
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) {
      logits[v] = 0;
      for (size_t i = 0; i < width; ++i) logits[v] += static_cast<double>(x[t * width + i]) * static_cast<double>(head[v * width + i]);
      sum += std::exp(logits[v]);
    }
    out.nats += std::log(sum) - logits[static_cast<size_t>(targets[t])];
    for (size_t v = 0; v < vocab; ++v) {
      const double d = scale * (std::exp(logits[v]) / sum - (static_cast<int32_t>(v) == targets[t] ? 1 : 0));
      for (size_t i = 0; i < width; ++i) {
        out.dx[t * width + i] += d * static_cast<double>(head[v * width + i]);
        out.dhead[v * width + i] += d * static_cast<double>(x[t * width + i]);
      }
    }
  }
  return out;
}

double norm_ratio(const std::vector<double>& wanted, const float* got) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double d = static_cast<double>(got[i]) - wanted[i];
    error += d * d;
    norm += wanted[i] * wanted[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

struct Shape {
  int64_t tokens, width, vocab;
  int every;  // one in so many has no target; 1: none has one, 0: all have
};

class CrossEntropyTest : public testing::TestWithParam<Shape> {};

TEST_P(CrossEntropyTest, IsThatOfPlainLoops) {
  const Shape s = GetParam();
  std::vector<float> x = random_normal(s.tokens * s.width, 1), head = random_normal(s.vocab * s.width, 2, 0.5F);
  std::vector<int32_t> targets(static_cast<size_t>(s.tokens));
  for (size_t t = 0; t < targets.size(); ++t) {
    targets[t] = s.every > 0 && t % static_cast<size_t>(s.every) == 0 ? -1 : static_cast<int32_t>((t * 37) % static_cast<size_t>(s.vocab));
  }
  const double scale = 0.25;
  const Wanted wanted = reference(x, head, targets, static_cast<size_t>(s.width), scale);
  for (const Isa isa : test_isas()) {
    TestRun run(isa, 2);
    Ctx ctx = run.ctx;
    ctx.training = true;
    Tape tape;
    ctx.tape = &tape;
    std::vector<float> dhead(head.size(), 0.0F);
    tape.parameters(head.data(), DType::f32, s.vocab * s.width, matrix(dhead.data(), s.vocab, s.width));
    const Tensor input = matrix(x.data(), s.tokens, s.width);
    const CrossEntropy got = cross_entropy(ctx, input, {head.data(), nullptr, Scheme::f32, s.vocab, s.width}, targets, scale);
    EXPECT_EQ(std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; }), got.tokens);
    EXPECT_NEAR(wanted.nats, got.nats, 1e-6 * std::max(1.0, wanted.nats));
    EXPECT_LT(norm_ratio(wanted.dhead, dhead.data()), 1e-5);
    if (got.tokens == 0) {
      EXPECT_FALSE(tape.grad(input));
      continue;
    }
    EXPECT_LT(norm_ratio(wanted.dx, tape.grad(input).f32()), 1e-5);
    ctx.tape = nullptr;
    EXPECT_EQ(got.nats, cross_entropy(ctx, input, {head.data(), nullptr, Scheme::f32, s.vocab, s.width}, targets, scale).nats);
  }
}

// In FP64, every element of both gradients by central differences.
TEST(CrossEntropyTrain, FiniteDifferencesOfEveryElement) {
  const int64_t width = 5, vocab = 7;
  const std::vector<int32_t> targets = {3, -1, 0, 6};
  const std::vector<float> x32 = random_normal(4 * width, 1), head32 = random_normal(vocab * width, 2);
  std::vector<double> x(x32.begin(), x32.end()), head(head32.begin(), head32.end()), dhead(head.size());
  const Tensor input(x.data(), DType::f64, {4, width});
  TestRun run(Isa::scalar);
  run.ctx.training = run.ctx.double_precision = true;
  const auto loss = [&] { return cross_entropy(run.ctx, input, {head.data(), nullptr, Scheme::f64, vocab, width}, targets, 0.25).nats; };
  Tape tape;
  tape.parameters(head.data(), DType::f64, vocab * width, Tensor(dhead.data(), DType::f64, {vocab, width}));
  run.ctx.tape = &tape;
  loss();
  run.ctx.tape = nullptr;
  const auto slope = [&](double& value) {
    const double before = value;
    value = before + 1e-5;
    const double above = loss();
    value = before - 1e-5;
    const double below = loss();
    value = before;
    return 0.25 * (above - below) / 2e-5;
  };
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(slope(x[i]), tape.grad(input).f64()[i], 1e-9) << i;
  for (size_t i = 0; i < head.size(); ++i) EXPECT_NEAR(slope(head[i]), dhead[i], 1e-9) << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropyTest,
                         testing::Values(Shape{1, 1, 1, 0}, Shape{1, 8, 2, 0}, Shape{7, 33, 51, 3}, Shape{5, 16, 100, 1}, Shape{255, 8, 17, 2},
                                         Shape{256, 8, 17, 0}, Shape{257, 12, 65, 5}, Shape{600, 5, 31, 7}));

}  // namespace
}  // namespace k3::ops
