#include "k3/model/layers.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/moe/moe.h"
#include "k3/ops/rms_norm/rms_norm.h"
#include "k3/ops/router/router.h"

namespace k3 {

ops::Glu activation_of(const Config& config) {
  ops::Glu glu;
  if (config.hidden_act == Activation::silu) return glu;
  glu.kind = ops::GluKind::situ;
  glu.beta = static_cast<float>(config.activation_situ_beta);
  if (config.activation_situ_linear_beta) glu.linear_beta = static_cast<float>(*config.activation_situ_linear_beta);
  return glu;
}

void mlp_layer(const ops::Ctx& ctx, const ops::Glu& activation, const MlpWeights& w, const Tensor& x, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor gate = ctx.workspace->tensor({x.dim(0), w.gate.rows});
  const Tensor up = ctx.workspace->tensor({x.dim(0), w.up.rows});
  ops::linear(ctx, x, w.gate, gate);
  ops::linear(ctx, x, w.up, up);
  ops::glu(ctx, gate, up, activation, gate);
  ops::linear(ctx, gate, w.down, out);
}

void moe_layer(const ops::Ctx& ctx, const Config& config, const MoeWeights& w, const Tensor& x, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = x.dim(0), topk = config.num_experts_per_token;
  const ops::Glu activation = activation_of(config);

  // The router reads the full-width input in FP32.
  const Tensor logits = ctx.workspace->tensor({tokens, config.num_experts});
  const Tensor ids = ctx.workspace->tensor({tokens, topk}, DType::i32);
  const Tensor weights = ctx.workspace->tensor({tokens, topk});
  ops::linear(ctx, x, w.router, logits, {.full_precision = true});
  ops::router(
      ctx, logits, w.router_bias,
      {.topk = topk, .renormalise = config.moe_renormalize, .scale = static_cast<float>(config.routed_scaling_factor)}, ids,
      weights);

  if (w.down) {
    // Latent experts: the norm acts once on the weighted sum, before the up projection.
    const Tensor z = ctx.workspace->tensor({tokens, w.down.rows});
    const Tensor sum = ctx.workspace->tensor({tokens, w.down.rows});
    ops::linear(ctx, x, w.down, z);
    ops::moe(ctx, z, ids, weights, w.experts, activation, sum);
    if (w.latent_norm) ops::rms_norm(ctx, sum, w.latent_norm, static_cast<float>(config.rms_norm_eps), sum);
    ops::linear(ctx, sum, w.up, out);
  } else {
    ops::moe(ctx, x, ids, weights, w.experts, activation, out);
  }
  if (w.shared) {
    const Tensor shared = ctx.workspace->tensor({tokens, config.hidden_size});
    mlp_layer(ctx, activation, w.shared, x, shared);
    ops::add(ctx, shared, out);
  }
}

}  // namespace k3
