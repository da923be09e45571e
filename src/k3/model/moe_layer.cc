#include "k3/model/layers.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/moe/moe.h"
#include "k3/ops/rms_norm/rms_norm.h"
#include "k3/ops/router/router.h"

namespace k3 {
namespace {

// out[t] = sum_j weights[t, j] * expert(z_t); the experts come through the stream, in groups.
Status streamed_experts(const ops::Ctx& ctx, WeightStream* stream, const Tensor& z, const Tensor& ids, const Tensor& weights,
                        const ops::Glu& activation, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor slot_out = ctx.workspace->tensor({ids.size(), z.dim(1)});
  K3_TRY(stream->experts().visit(
      *ctx.pool, [&](std::span<const int32_t> subset, std::span<const ops::ExpertWeights> experts) {
        ops::moe_slots(ctx, z, ids, subset, experts, activation, slot_out);
      }));
  ops::moe_combine(ctx, slot_out, weights, out);
  return {};
}

}  // namespace

ops::Glu activation_of(const Config& config) {
  ops::Glu glu;
  if (config.hidden_act == Activation::silu) return glu;
  glu.kind = ops::GluKind::situ;
  glu.beta = static_cast<float>(config.activation_situ_beta);
  if (config.activation_situ_linear_beta) glu.linear_beta = static_cast<float>(*config.activation_situ_linear_beta);
  return glu;
}

void mlp_layer(const ops::Ctx& ctx, const ops::Glu& activation, const MlpWeights& w, const ops::AttnResSite& x, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor hidden = ctx.workspace->tensor({x.out.dim(0), w.gate.rows}, ctx.activation());
  const ops::LinearPart part{.w = w.gate, .y = hidden, .up = w.up, .glu = &activation};
  ops::linear_many(ctx, x, {&part, 1});
  ops::linear(ctx, hidden, w.down, out);
}

Status moe_layer(const ops::Ctx& ctx, const Config& config, const MoeWeights& w, int64_t l, WeightStream* stream,
                 const ops::AttnResSite& site, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor& x = site.out;
  const int64_t tokens = x.dim(0);
  const ops::Glu activation = activation_of(config);

  // Everything that reads x, as one stream of weights. The router reads it in FP32.
  const Tensor logits = ctx.workspace->tensor({tokens, config.num_experts}, ctx.double_precision ? DType::f64 : DType::f32);
  const Tensor z = w.down ? ctx.workspace->tensor({tokens, w.down.rows}, ctx.activation()) : x;
  const Tensor shared_hidden = w.shared ? ctx.workspace->tensor({tokens, w.shared.gate.rows}, ctx.activation()) : Tensor();
  ops::LinearPart parts[3] = {{.w = w.router, .y = logits, .full_precision = true}};
  size_t count = 1;
  if (w.down) parts[count++] = {.w = w.down, .y = z};
  if (w.shared) parts[count++] = {.w = w.shared.gate, .y = shared_hidden, .up = w.shared.up, .glu = &activation};
  // Experts that come from the disk are asked for first; the other products are computed while they come.
  const size_t early = stream != nullptr ? 1 : count;
  ops::linear_many(ctx, site, std::span(parts, early));

  ops::RoutedExperts routed;
  routed.z = z;
  routed.logits = logits;
  routed.bias = w.router_bias;
  routed.route = {.topk = config.num_experts_per_token,
                  .renormalise = config.moe_renormalize,
                  .scale = static_cast<float>(config.routed_scaling_factor)};
  routed.activation = activation;
  // Latent experts: the norm acts once on the weighted sum, before the up projection.
  if (w.down) routed.norm = w.latent_norm;
  routed.eps = static_cast<float>(config.rms_norm_eps);
  routed.out = w.down ? ctx.workspace->tensor({tokens, w.down.rows}, ctx.activation()) : out;
  Tensor ids, weights;
  if (stream != nullptr) {
    ids = ctx.workspace->tensor({tokens, routed.route.topk}, DType::i32);
    weights = ctx.workspace->tensor({tokens, routed.route.topk});
    ops::router(ctx, logits, w.router_bias, routed.route, ids, weights);
    stream->experts().begin(l, ids);
    if (count > early) ops::linear_many(ctx, x, std::span(parts + early, count - early));
  }
  if (w.shared && w.down) {
    ops::linear(ctx, shared_hidden, w.shared.down, out);  // waits there for the routed experts' output
  } else if (w.shared) {
    routed.shared_hidden = shared_hidden;
    routed.shared_down = w.shared.down;
  }
  if (stream != nullptr) {
    K3_TRY(streamed_experts(ctx, stream, z, ids, weights, activation, routed.out));
    if (routed.norm) ops::rms_norm(ctx, routed.out, routed.norm, routed.eps, routed.out);
    if (routed.shared_down) ops::linear(ctx, shared_hidden, routed.shared_down, routed.out, {.accumulate = true});
  } else {
    routed.experts = w.experts;
    routed.bank = w.bank;
    ops::routed_experts(ctx, routed);
  }
  if (w.down) ops::linear(ctx, routed.out, w.up, out, {.accumulate = static_cast<bool>(w.shared)});
  if (stream != nullptr) stream->predict_next(ctx, l, x);
  return {};
}

}  // namespace k3
