#include <algorithm>
#include <cmath>

#include "k3/model/layers.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/mla/mla.h"
#include "k3/ops/rms_norm/rms_norm.h"

namespace k3 {

void mla_layer(const ops::Ctx& ctx, const Config& config, const MlaWeights& w, const Batch& batch, const LayerCache& cache,
               const ops::AttnResSite& x, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = batch.token_count(), heads = config.num_attention_heads;
  const int64_t query_width = config.qk_nope_head_dim + config.qk_rope_head_dim, value = config.v_head_dim;
  const auto scratch = [&](int64_t columns) { return ctx.workspace->tensor({tokens, columns}, ctx.activation()); };
  const auto latent_eps = static_cast<float>(config.latent_norm_eps);

  // Everything that reads x, as one stream of weights.
  const Tensor q = scratch(heads * query_width);
  const Tensor kv = scratch(w.kv_a.rows);
  const Tensor latent = w.q ? Tensor() : scratch(w.q_a.rows);
  const Tensor gate = w.g ? scratch(heads * value) : Tensor();
  const ops::LinearPart parts[] = {{.w = w.q ? w.q : w.q_a, .y = w.q ? q : latent}, {.w = w.kv_a, .y = kv}, {.w = w.g, .y = gate}};
  ops::linear_many(ctx, x, std::span(parts, w.g ? 3 : 2));
  if (!w.q) {
    ops::rms_norm(ctx, latent, w.q_a_norm, latent_eps, latent);
    ops::linear(ctx, latent, w.q_b, q);
  }

  const Tensor o = scratch(heads * value), o_rest = x.out_rest ? scratch(heads * value) : Tensor();
  // The step's latents go into the cache first; attention reads history and step alike from there.
  ops::MlaArgs args;
  args.q = q.reshape({tokens, heads, query_width});
  args.kv_b = w.kv_b;
  args.nope = config.qk_nope_head_dim;
  args.rope = config.qk_rope_head_dim;
  args.value = value;
  args.rank = config.kv_lora_rank;
  args.offsets = batch.offsets;
  args.history = batch.history;
  args.caches = cache.pages;
  args.table = cache.table;
  args.out = o.reshape({tokens, heads, value});
  args.out_rest = o_rest;
  args.gate = gate;
  args.kv = kv;
  args.kv_norm = w.kv_a_norm;
  args.kv_eps = latent_eps;
  ops::mla(ctx, args);
  ops::linear(ctx, o, w.o, out, {.x_rest = o_rest});
}

}  // namespace k3
