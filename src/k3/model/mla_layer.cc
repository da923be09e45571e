#include <algorithm>
#include <cmath>

#include "k3/model/layers.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/mla/mla.h"
#include "k3/ops/rms_norm/rms_norm.h"

namespace k3 {

void mla_layer(const ops::Ctx& ctx, const Config& config, const MlaWeights& w, const Batch& batch, const LayerCache& cache,
               const Tensor& x, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = batch.token_count(), heads = config.num_attention_heads;
  const int64_t query_width = config.qk_nope_head_dim + config.qk_rope_head_dim, value = config.v_head_dim;
  const auto latent_eps = static_cast<float>(config.latent_norm_eps);

  const Tensor q = ctx.workspace->tensor({tokens, heads * query_width});
  if (w.q) {
    ops::linear(ctx, x, w.q, q);
  } else {
    const Tensor latent = ctx.workspace->tensor({tokens, w.q_a.rows});
    ops::linear(ctx, x, w.q_a, latent);
    ops::rms_norm(ctx, latent, w.q_a_norm, latent_eps, latent);
    ops::linear(ctx, latent, w.q_b, q);
  }

  // The step's latents go into the cache first; attention reads history and step alike from there.
  const Tensor kv = ctx.workspace->tensor({tokens, w.kv_a.rows});
  ops::linear(ctx, x, w.kv_a, kv);
  ops::latent_append(ctx, kv, w.kv_a_norm, latent_eps, batch.offsets, batch.history, cache.pages);

  const Tensor o = ctx.workspace->tensor({tokens, heads * value});
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
  args.out = o.reshape({tokens, heads, value});
  ops::mla(ctx, args);

  if (w.g) {
    const Tensor gate = ctx.workspace->tensor({tokens, heads * value});
    ops::linear(ctx, x, w.g, gate);
    ops::sigmoid_gate(ctx, gate, o);
  }
  ops::linear(ctx, o, w.o, out);
}

}  // namespace k3
