// Gradients of linear layers over the table of their shapes: plain, added to, and as the first half of an MLP.
#include "k3/ops/gemm/linear_train.h"

#include "k3/ops/gemm/linear_cases.h"
#include "k3/ops/vjp_test.h"

namespace k3::ops {
namespace {

using Kind = VjpInput::Kind;

// In double a product is plain loops: cases beyond this are for the benches and matmul_test.
constexpr int64_t kMostProducts = 400000, kMostForDifferences = 50000;

TEST(LinearTrain, EveryCaseAgainstDifferencesAndDouble) {
  for (const LinearCase& c : kLinearCases) {
    const int64_t products = c.tokens * c.in * c.out;
    if (products > kMostProducts) continue;
    VjpOp op;
    op.name = fmt::format("linear {} x {} to {}", c.tokens, c.in, c.out);
    op.inputs = {vjp_input("x", Kind::activation, c.tokens, c.in, 1),
                 vjp_input("w", Kind::parameter, c.out, c.in, 2, 1 / std::sqrt(static_cast<float>(c.in)))};
    op.forward = [&](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
      const Tensor y = ctx.workspace->tensor({c.tokens, c.out}, in[0].dtype);
      linear_many_train(ctx, in[0], std::vector<LinearPart>{{.w = vjp_weight(in[1]), .y = y}});
      return {y};
    };
    check_vjp(op, products < kMostForDifferences);
  }
}

// Several products of one input, one of them added to what another wrote, one behind an activation.
TEST(LinearTrain, PartsOfOneInputAddUp) {
  for (const LinearCase& c : {LinearCase{1, 1, 1}, LinearCase{3, 33, 5}, LinearCase{17, 19, 31}, LinearCase{300, 7, 9}}) {
    VjpOp op;
    op.name = fmt::format("parts {} x {} to {}", c.tokens, c.in, c.out);
    const float scale = 1 / std::sqrt(static_cast<float>(c.in));
    op.inputs = {vjp_input("x", Kind::activation, c.tokens, c.in, 1),      vjp_input("w", Kind::parameter, c.out, c.in, 2, scale),
                 vjp_input("added", Kind::parameter, c.out, c.in, 3, scale), vjp_input("gate", Kind::parameter, c.out + 1, c.in, 4, scale),
                 vjp_input("up", Kind::parameter, c.out + 1, c.in, 5, scale)};
    static constexpr Glu kKind = {GluKind::situ, 4.0F, 25.0F};
    op.forward = [&](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
      const Tensor y = ctx.workspace->tensor({c.tokens, c.out}, in[0].dtype), h = ctx.workspace->tensor({c.tokens, c.out + 1}, in[0].dtype);
      const std::vector<LinearPart> parts = {{.w = vjp_weight(in[1]), .y = y},
                                             {.w = vjp_weight(in[2]), .y = y, .accumulate = true},
                                             {.w = vjp_weight(in[3]), .y = h, .up = vjp_weight(in[4]), .glu = &kKind}};
      linear_many_train(ctx, in[0], parts);
      return {y, h};
    };
    check_vjp(op);
  }
}

TEST(LinearTrain, AMatrixThatIsNotTrainedHasNoGradientAndItsInputHas) {
  TestRun run(Isa::scalar);
  Tape tape;
  Ctx ctx = run.ctx;
  ctx.training = true;
  ctx.tape = &tape;
  std::vector<float> x = random_normal(6, 1), w = random_normal(12, 2), y(8);
  const Tensor input = matrix(x.data(), 2, 3), out = matrix(y.data(), 2, 4);
  float seen = 0;
  tape.record([&](const Ctx&) { seen = tape.grad(input).f32()[5]; });
  linear_many_train(ctx, input, std::vector<LinearPart>{{.w = vjp_weight(matrix(w.data(), 4, 3)), .y = out}});
  vjp_internal::fill(tape.into(out).grad, std::vector<double>(8, 1.0));
  tape.backward(ctx);
  EXPECT_NEAR(seen, w[2] + w[5] + w[8] + w[11], 1e-6);
}

}  // namespace
}  // namespace k3::ops
