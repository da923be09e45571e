#include "k3/model/layers.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/moe/moe.h"
#include "k3/ops/rms_norm/rms_norm.h"
#include "k3/ops/router/router.h"

namespace k3 {
namespace {

// out[t] = sum_j weights[t, j] * expert(z_t); experts that are not in memory come through the stream, in groups.
Status routed_experts(const ops::Ctx& ctx, const MoeWeights& w, WeightStream* stream, const Tensor& z, const Tensor& ids,
                      const Tensor& weights, const ops::Glu& activation, const Tensor& out) {
  if (stream == nullptr) {
    ops::moe(ctx, z, ids, weights, w.experts, activation, out, w.bank);
    return {};
  }
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

void mlp_layer(const ops::Ctx& ctx, const ops::Glu& activation, const MlpWeights& w, const Tensor& x, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor gate = ctx.workspace->tensor({x.dim(0), w.gate.rows}, ctx.activation());
  const Tensor up = ctx.workspace->tensor({x.dim(0), w.up.rows}, ctx.activation());
  const ops::LinearPart parts[] = {{w.gate, gate}, {w.up, up}};
  ops::linear_many(ctx, x, parts);
  ops::glu(ctx, gate, up, activation, gate);
  ops::linear(ctx, gate, w.down, out);
}

Status moe_layer(const ops::Ctx& ctx, const Config& config, const MoeWeights& w, int64_t l, WeightStream* stream,
                 const Tensor& x, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = x.dim(0), topk = config.num_experts_per_token;
  const ops::Glu activation = activation_of(config);

  // Everything that reads x, as one stream of weights. The router reads it in FP32.
  const Tensor logits = ctx.workspace->tensor({tokens, config.num_experts});
  const Tensor z = w.down ? ctx.workspace->tensor({tokens, w.down.rows}, ctx.activation()) : x;
  const Tensor shared_gate = w.shared ? ctx.workspace->tensor({tokens, w.shared.gate.rows}, ctx.activation()) : Tensor();
  const Tensor shared_up = w.shared ? ctx.workspace->tensor({tokens, w.shared.up.rows}, ctx.activation()) : Tensor();
  ops::LinearPart parts[4] = {{w.router, logits, true}};
  size_t count = 1;
  if (w.down) parts[count++] = {w.down, z};
  if (w.shared) {
    parts[count++] = {w.shared.gate, shared_gate};
    parts[count++] = {w.shared.up, shared_up};
  }
  // Experts that come from the disk are asked for first; the other products are computed while they come.
  const size_t early = stream != nullptr ? 1 : count;
  ops::linear_many(ctx, x, std::span(parts, early));

  const Tensor ids = ctx.workspace->tensor({tokens, topk}, DType::i32);
  const Tensor weights = ctx.workspace->tensor({tokens, topk});
  ops::router(
      ctx, logits, w.router_bias,
      {.topk = topk, .renormalise = config.moe_renormalize, .scale = static_cast<float>(config.routed_scaling_factor)}, ids,
      weights);
  if (stream != nullptr) {
    stream->experts().begin(l, ids);
    if (count > early) ops::linear_many(ctx, x, std::span(parts + early, count - early));
  }
  Tensor shared;
  if (w.shared) {
    shared = ctx.workspace->tensor({tokens, config.hidden_size}, ctx.activation());
    ops::glu(ctx, shared_gate, shared_up, activation, shared_gate);
    ops::linear(ctx, shared_gate, w.shared.down, shared);
  }

  const Tensor routed = w.down ? ctx.workspace->tensor({tokens, w.down.rows}, ctx.activation()) : out;
  K3_TRY(routed_experts(ctx, w, stream, z, ids, weights, activation, routed));
  if (w.down) {
    // Latent experts: the norm acts once on the weighted sum, before the up projection.
    if (w.latent_norm) ops::rms_norm(ctx, routed, w.latent_norm, static_cast<float>(config.rms_norm_eps), routed);
    ops::linear(ctx, routed, w.up, out);
  }
  if (w.shared) ops::add(ctx, shared, out);
  if (stream != nullptr) stream->predict_next(ctx, l, x);
  return {};
}

}  // namespace k3
