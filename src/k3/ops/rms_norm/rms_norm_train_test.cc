// Gradients of RMSNorm over the table of its shapes, into buffers of their own and in place.
#include "k3/ops/rms_norm/rms_norm_train.h"

#include "k3/ops/rms_norm/rms_norm_cases.h"
#include "k3/ops/vjp_test.h"

namespace k3::ops {
namespace {

using Kind = VjpInput::Kind;

TEST(RmsNormTrain, EveryCaseAgainstDifferencesAndDouble) {
  for (const RmsNormCase& c : kRmsNormCases) {
    if (c.tokens == 0) continue;  // a batch has tokens
    for (const bool in_place : {false, true}) {
      VjpOp op;
      op.name = fmt::format("rms_norm {} x {}{}", c.tokens, c.width, in_place ? " in place" : "");
      op.inputs = {vjp_input("x", in_place ? Kind::single : Kind::activation, c.tokens, c.width, 1),
                   vjp_input("weight", Kind::parameter, 1, c.width, 2, 0.3F, 1)};
      op.forward = [in_place](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
        const Tensor out = in_place ? in[0] : ctx.workspace->tensor_like(in[0]);
        rms_norm_train(ctx, in[0], in[1].reshape({in[1].size()}), 1e-5F, out);
        return {out};
      };
      op.compare_f32 = c.width > 1;  // the norm of one number is its sign
      check_vjp(op, c.tokens * c.width < 4000);
    }
  }
}

// More tokens than one part of a sum over tokens.
TEST(RmsNormTrain, ManyTokens) {
  VjpOp op;
  op.name = "rms_norm 600 x 17";
  op.inputs = {vjp_input("x", Kind::activation, 600, 17, 1), vjp_input("weight", Kind::parameter, 1, 17, 2)};
  op.forward = [](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
    const Tensor out = ctx.workspace->tensor_like(in[0]);
    rms_norm_train(ctx, in[0], in[1].reshape({in[1].size()}), 1e-5F, out);
    return {out};
  };
  check_vjp(op);
}

}  // namespace
}  // namespace k3::ops
