// Gradients of AttnRes sites over the table of their shapes: with and without a sum before, a bank behind, blocks at all.
#include "k3/ops/attn_res/attn_res_train.h"

#include "k3/ops/attn_res/attn_res_cases.h"
#include "k3/ops/vjp_test.h"

namespace k3::ops {
namespace {

using Kind = VjpInput::Kind;

struct Form {
  bool delta, bank;
};

// Inputs: prefix, norm, then delta, then query and the blocks, where there are any.
VjpOp site_op(const AttnResCase& c, const Form& form) {
  VjpOp op;
  op.name = fmt::format("AttnRes of {} blocks, {} x {}{}{}", c.blocks, c.tokens, c.hidden, form.delta ? ", sum" : "", form.bank ? ", bank" : "");
  op.inputs = {vjp_input("prefix", Kind::activation, c.tokens, c.hidden, 1, c.row_scale),
               vjp_input("norm", Kind::parameter, 1, c.hidden, 2, 0.3F, 1)};
  if (form.delta) op.inputs.push_back(vjp_input("delta", Kind::activation, c.tokens, c.hidden, 3, c.row_scale));
  if (c.blocks > 0) {
    const float scale = c.query_scale / std::sqrt(static_cast<float>(c.hidden));
    op.inputs.push_back(vjp_input("query", Kind::activation, 1, c.hidden, 4, scale));
    op.inputs.push_back(vjp_input("blocks", Kind::fixed, c.blocks * c.tokens, c.hidden, 5, c.row_scale));
  }
  op.forward = [c, form](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
    AttnResSite site;
    size_t next = 2;
    site.prefix = in[0];
    site.norm = in[1].reshape({c.hidden});
    if (form.delta) site.delta = in[next++];
    if (c.blocks > 0) {
      site.query = in[next].reshape({c.hidden});
      site.blocks = in[next + 1].reshape({c.blocks, c.tokens, c.hidden});
    }
    if (form.bank) site.bank_to = ctx.workspace->tensor_like(site.prefix);
    site.eps = 1e-5F;
    site.out = ctx.workspace->tensor_like(site.prefix);
    attn_res_site_train(ctx, site);
    if (form.bank) return {site.out, site.bank_to};
    return {site.out};
  };
  op.compare_f32 = c.hidden > 1;  // the norm of one number is its sign
  return op;
}

TEST(AttnResTrain, EveryCaseAgainstDifferencesAndDouble) {
  for (const AttnResCase& c : attn_res_cases()) {
    if (c.tokens == 0) continue;
    for (const Form& form : {Form{false, false}, Form{true, false}, Form{true, true}}) {
      check_vjp(site_op(c, form), c.blocks * c.tokens * c.hidden < 2500);
    }
  }
}

// Blocks have gradients one by one, under their own addresses: they are what sites before this one banked.
TEST(AttnResTrain, BlocksGatherTheGradientsOfAllSites) {
  for (const int64_t hidden : {7, 16, 33}) {
    const int64_t tokens = 5;
    VjpOp op;
    op.name = fmt::format("three sites, {} wide", hidden);
    op.inputs = {vjp_input("prefix", Kind::activation, tokens, hidden, 1), vjp_input("delta 1", Kind::activation, tokens, hidden, 2),
                 vjp_input("delta 2", Kind::activation, tokens, hidden, 3), vjp_input("query 1", Kind::activation, 1, hidden, 4),
                 vjp_input("query 2", Kind::activation, 1, hidden, 5), vjp_input("norm", Kind::parameter, 1, hidden, 6, 0.3F, 1)};
    op.forward = [=](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
      const Tensor bank = ctx.workspace->tensor({2, tokens, hidden}, in[0].dtype);
      std::vector<Tensor> outs;
      for (int64_t i = 0; i < 3; ++i) {
        AttnResSite site;
        site.prefix = in[0];
        if (i > 0) site.delta = in[static_cast<size_t>(i)];
        if (i < 2) site.bank_to = bank.at(i);
        site.blocks = bank.slice(0, i);
        if (i > 0) site.query = in[static_cast<size_t>(2 + i)].reshape({hidden});
        site.norm = in[5].reshape({hidden});
        site.eps = 1e-5F;
        site.out = ctx.workspace->tensor_like(site.prefix);
        attn_res_site_train(ctx, site);
        outs.push_back(site.out);
      }
      return outs;
    };
    check_vjp(op);
  }
}

TEST(AttnResTrain, FoldedQueries) {
  for (const int64_t hidden : {1, 7, 33}) {
    VjpOp op;
    op.name = fmt::format("fold_query {}", hidden);
    op.inputs = {vjp_input("norm", Kind::parameter, 1, hidden, 1), vjp_input("projection", Kind::parameter, 1, hidden, 2)};
    op.forward = [](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
      const Tensor query = ctx.workspace->tensor_like(in[0]);
      fold_query(ctx, in[0], in[1], query);
      return {query};
    };
    check_vjp(op);
  }
}

}  // namespace
}  // namespace k3::ops
