// The tape's rules: who has a gradient when, buffers that are overwritten or added to, regions that are computed twice.
#include "k3/ops/tape.h"

#include <gtest/gtest.h>

#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/test_util.h"

namespace k3::ops {
namespace {

struct TapeTest : testing::Test {
  TestRun run{Isa::scalar};
  Tape tape;
  Ctx ctx = run.ctx;
  int forwards = 0;
  TapeTest() {
    ctx.tape = &tape;
    ctx.training = true;
  }

  Tensor row(float value) {
    const Tensor t = run.workspace.tensor({1, 4}, DType::f32);
    for (int64_t i = 0; i < 4; ++i) t.f32()[i] = value;
    return t;
  }
  // y = factor x
  void scaled(const Ctx& with, const Tensor& x, float factor, const Tensor& y) {
    ++forwards;
    for (int64_t i = 0; i < 4; ++i) y.f32()[i] = factor * x.f32()[i];
    if (with.tape == nullptr) return;
    with.tape->record([this, x, factor, y](const Ctx&) {
      const Tensor dy = tape.grad(y);
      if (!dy) return;
      std::vector<float> kept(dy.f32(), dy.f32() + 4);
      tape.done(y);
      const Tape::Into dx = tape.into(x);
      for (size_t i = 0; i < 4; ++i) dx.grad.f32()[i] = (dx.fresh ? 0 : dx.grad.f32()[i]) + factor * kept[i];
    });
  }
  void seed(const Tensor& y, float value) {
    const Tape::Into dy = tape.into(y);
    for (int64_t i = 0; i < 4; ++i) dy.grad.f32()[i] = value;
  }
  // The gradient that arrives at the first op's input.
  float arriving(const Tensor& x) {
    float value = -1;
    steps_before_ = [&] { value = tape.grad(x) ? tape.grad(x).f32()[3] : 0; };
    tape.backward(ctx);
    return value;
  }
  // Recorded first, so taken back last.
  void watch_first() {
    tape.record([this](const Ctx&) { steps_before_(); });
  }
  std::function<void()> steps_before_;
};

TEST_F(TapeTest, GradientsOfAllUsesAddUp) {
  watch_first();
  const Tensor x = row(1), a = row(0), b = row(0);
  scaled(ctx, x, 2, a);
  scaled(ctx, x, 3, b);
  seed(a, 1);
  seed(b, 10);
  EXPECT_EQ(32, arriving(x));
}

TEST_F(TapeTest, WhatNothingDependsOnHasNone) {
  watch_first();
  const Tensor x = row(1), a = row(0);
  scaled(ctx, x, 2, a);
  EXPECT_EQ(0, arriving(x));
  EXPECT_FALSE(tape.grad(x));
}

// A buffer written twice: the gradient of the second content must not reach the ops before the first.
TEST_F(TapeTest, AnOverwrittenBufferStartsAfresh) {
  watch_first();
  const Tensor x = row(1), other = row(1), a = row(0), b = row(0);
  scaled(ctx, x, 2, a);
  scaled(ctx, a, 5, b);
  scaled(ctx, other, 7, a);
  seed(a, 100);  // of the second content
  seed(b, 1);    // that read the first
  EXPECT_EQ(10, arriving(x));
}

// y += x leaves y's gradient where it is: the residual stream.
TEST_F(TapeTest, SumsInPlaceKeepTheirGradient) {
  watch_first();
  const Tensor x = row(1), y = row(0), branch = row(0);
  scaled(ctx, x, 1, y);
  scaled(ctx, y, 3, branch);
  for (int64_t i = 0; i < 4; ++i) y.f32()[i] += branch.f32()[i];
  tape.record([&](const Ctx& back) { tape.add(back, branch, tape.grad(y)); });
  seed(y, 1);
  EXPECT_EQ(4, arriving(x));  // straight, and through the branch
}

TEST_F(TapeTest, RegionsAreComputedAgainWithTheSameGradient) {
  for (const bool recompute : {false, true}) {
    tape.recompute = recompute;
    forwards = 0;
    const Workspace::Scope scope(run.workspace);
    run.workspace.retain(true);
    watch_first();
    const Tensor x = row(1), y = row(0);
    region(ctx, y, [this, x](const Ctx& with, const Tensor& out) {
      const Tensor middle = with.workspace->tensor({1, 4}, DType::f32);
      scaled(with, x, 2, middle);
      scaled(with, middle, 3, out);
    });
    run.workspace.retain(false);
    EXPECT_EQ(6, y.f32()[0]);
    seed(y, 1);
    EXPECT_EQ(6, arriving(x));
    EXPECT_EQ(recompute ? 4 : 2, forwards);
  }
}

TEST_F(TapeTest, ParametersAreFoundByTheirPlace) {
  std::vector<float> weights(10), grads(10);
  tape.parameters(weights.data(), DType::f32, 10, Tensor(grads.data(), DType::f32, {10}));
  EXPECT_EQ(grads.data() + 6, tape.parameter_grad(weights.data() + 6, 4).f32());
  EXPECT_EQ(4, tape.parameter_grad(weights.data() + 6, 4).size());
  EXPECT_FALSE(tape.parameter_grad(weights.data() + 10, 1));
  EXPECT_FALSE(tape.parameter_grad(&tape, 1));
}

}  // namespace
}  // namespace k3::ops
