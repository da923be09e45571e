// Gradients of routed experts over a table of shapes: renormalised or not, with norm, with a shared expert, experts nobody chose.
#include "k3/ops/moe/moe_train.h"

#include "k3/ops/moe/moe_cases.h"
#include "k3/ops/vjp_test.h"

namespace k3::ops {
namespace {

using Kind = VjpInput::Kind;

struct Form {
  RouterOptions route = {};  // topk of the case
  bool norm = false, shared = false, bias = true;
  Glu activation = {GluKind::situ, 4.0F, 25.0F};
};

// Experts of all three matrices lie one after another in one input each.
VjpOp moe_op(const MoeCase& c, Form form) {
  form.route.topk = c.topk;
  VjpOp op;
  op.name = fmt::format("{} tokens, {} of {} experts, {} to {}{}{}{}", c.tokens, c.topk, c.experts, c.width, c.hidden,
                        form.route.renormalise ? "" : ", raw weights", form.norm ? ", norm" : "", form.shared ? ", shared" : "");
  const int64_t f = c.experts * c.hidden, shared = c.hidden / 2 + 1;
  const float wide = 1 / std::sqrt(static_cast<float>(c.width)), narrow = 1 / std::sqrt(static_cast<float>(c.hidden));
  op.inputs = {vjp_input("z", Kind::activation, c.tokens, c.width, 1),
               vjp_input("logits", Kind::single, c.tokens, c.experts, 2),
               vjp_input("w1", Kind::parameter, f, c.width, 3, 2 * wide),
               vjp_input("w2", Kind::parameter, c.experts * c.width, c.hidden, 4, narrow),
               vjp_input("w3", Kind::parameter, f, c.width, 5, 2 * wide),
               vjp_input("bias", Kind::fixed, 1, c.experts, 6, 0.2F)};
  if (form.norm) op.inputs.push_back(vjp_input("norm", Kind::parameter, 1, c.width, 7, 0.3F, 1));
  if (form.shared) {
    op.inputs.push_back(vjp_input("shared_hidden", Kind::activation, c.tokens, shared, 8));
    op.inputs.push_back(vjp_input("shared_down", Kind::parameter, c.width, shared, 9, narrow));
  }
  op.forward = [=](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
    static thread_local std::vector<ExpertWeights> experts;  // the model's, which outlives the backward
    experts.clear();
    for (int64_t e = 0; e < c.experts; ++e) {
      experts.push_back({vjp_weight(in[2].slice(e * c.hidden, (e + 1) * c.hidden)), vjp_weight(in[3].slice(e * c.width, (e + 1) * c.width)),
                         vjp_weight(in[4].slice(e * c.hidden, (e + 1) * c.hidden))});
    }
    RoutedExperts args;
    args.z = in[0];
    args.logits = in[1];
    if (form.bias) args.bias = in[5].reshape({c.experts});
    args.route = form.route;
    args.experts = experts;
    args.activation = form.activation;
    size_t next = 6;
    if (form.norm) args.norm = in[next++].reshape({c.width});
    if (form.shared) {
      args.shared_hidden = in[next];
      args.shared_down = vjp_weight(in[next + 1]);
    }
    args.out = ctx.workspace->tensor_like(in[0]);
    routed_experts_train(ctx, args);
    return {args.out};
  };
  return op;
}

// In double a product is plain loops.
bool small(const MoeCase& c) { return c.tokens * c.topk * c.width * c.hidden < 20000; }

TEST(MoeTrain, EveryCaseAgainstDifferencesAndDouble) {
  for (const MoeCase& c : kMoeCases) {
    if (c.tokens == 0 || c.width * c.hidden > 200000) continue;
    check_vjp(moe_op(c, {.norm = true, .shared = true}), small(c));
  }
}

TEST(MoeTrain, EveryForm) {
  for (const MoeCase& c : {MoeCase{2, 3, 3, 5, 7}, MoeCase{3, 9, 4, 33, 17}, MoeCase{19, 40, 2, 6, 9}}) {
    for (const bool renormalise : {true, false}) {
      for (const bool norm : {true, false}) {
        for (const bool shared : {true, false}) {
          Form form{.route = {.renormalise = renormalise, .scale = 2.446F}, .norm = norm, .shared = shared, .bias = !shared};
          if (!norm) form.activation = {GluKind::silu, 1.0F, {}};
          check_vjp(moe_op(c, form), small(c));
        }
      }
    }
  }
}

// The weight of the only expert is 1 whatever its logit.
TEST(MoeTrain, TheOnlyExpertsLogitHasNoGradient) {
  const VjpOp op = moe_op({4, 1, 1, 6, 5}, {});
  VjpValues values;
  for (const VjpInput& in : op.inputs) values.emplace_back(in.values.begin(), in.values.end());
  const VjpResult exact = vjp_internal::run_f64(op, values, false, true);
  for (const double d : exact.grads[1]) EXPECT_NEAR(0, d, 1e-14);
}

}  // namespace
}  // namespace k3::ops
