#include "k3/model/forward.h"

#include "k3/model/layers.h"
#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/rms_norm/rms_norm.h"
#include "k3/ops/tape.h"

namespace k3 {

namespace {

const LayerCache no_cache;  // in training

// All layers. `prefix` [T, hidden] and `bank` [blocks, T, hidden] receive what the last mix reads; its blocks are returned.
Result<int64_t> run_layers(const ops::Ctx& ctx, const Config& config, const WeightSource& source, const Batch& batch, const Tensor& prefix,
                           const Tensor& bank) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = batch.token_count(), hidden = config.hidden_size;
  const auto eps = static_cast<float>(config.rms_norm_eps);
  const bool res = config.attn_res_block_size.has_value();
  const int64_t block = config.attn_res_block_size.value_or(1);

  const Tensor input = ctx.workspace->tensor({tokens, hidden}, ctx.activation());   // of the sub-layer
  const Tensor output = ctx.workspace->tensor({tokens, hidden}, ctx.activation());
  Tensor mixed, delta;  // these two, or in training others for each sub-layer
  int64_t banked = 0;
  Tensor pending;  // the last sub-layer's output, not yet in the prefix
  // What stands before a sub-layer: its input is mixed from the banked rows and the prefix, and normed. The sub-layer's first products
  // compute it.
  const auto site = [&](const Tensor& query, const Tensor& norm, bool starts_block) {
    mixed = ops::fresh(ctx, input);
    delta = ops::fresh(ctx, output);
    ops::AttnResSite out = {.delta = pending,
                            .prefix = prefix,
                            .bank_to = starts_block ? bank.at(banked) : Tensor(),
                            .blocks = bank.slice(0, banked),
                            .query = query,
                            .norm = norm,
                            .eps = eps,
                            .out = mixed};
    // In training it is computed here: a sub-layer that is computed again must find the sum as it was.
    if (ctx.training) {
      ops::attn_res_site(ctx, out);
      out = {.out = mixed};
    }
    pending = {};
    // The raw layer input is banked, not the mix.
    if (starts_block) ++banked;
    return out;
  };

  if (source.stream != nullptr) source.stream->begin_step(tokens);
  K3_TRY(source.embedding(ctx, batch.tokens, prefix));
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    K3_TRY_ASSIGN(const LayerWeights* const layer, source.layer(l));
    const LayerWeights& w = *layer;
    const LayerCache& cache = ctx.training ? no_cache : batch.caches[static_cast<size_t>(l)];

    const bool starts_block = res && l % block == 0;
    const ops::AttnResSite attention = site(w.attention_res_query, w.input_norm, starts_block);
    // The sum restarts from the attention output alone.
    const bool kda = config.attention[static_cast<size_t>(l)] == AttentionKind::kda;
    ops::region(ctx, starts_block ? prefix : delta, [&config, &w, &batch, &cache, kda, attention](const ops::Ctx& c, const Tensor& out) {
      kda ? kda_layer(c, config, w.kda, batch, cache, attention, out) : mla_layer(c, config, w.mla, batch, cache, attention, out);
    });
    if (!starts_block) pending = delta;

    const ops::AttnResSite mlp = site(w.mlp_res_query, w.post_attention_norm, false);
    Status done;
    ops::region(ctx, delta, [&config, &w, &done, l, stream = source.stream, mlp, moe = config.is_moe(l)](const ops::Ctx& c, const Tensor& out) {
      if (!moe) return mlp_layer(c, activation_of(config), w.mlp, mlp, out);
      Status status = moe_layer(c, config, w.moe, l, stream, mlp, out);
      if (stream != nullptr) done = std::move(status);  // in memory nothing fails, and a region may be repeated after this frame
    });
    K3_TRY(std::move(done));
    pending = delta;
  }
  if (pending) ops::add(ctx, pending, prefix);
  return banked;
}

int64_t block_count(const Config& config) {
  const int64_t block = config.attn_res_block_size.value_or(0);
  return block > 0 ? (config.num_hidden_layers + block - 1) / block : 0;
}

}  // namespace

Status forward(const ops::Ctx& ctx, const Config& config, const WeightSource& source, const Batch& batch,
               const Tensor& logits) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = batch.token_count(), hidden = config.hidden_size;
  const auto eps = static_cast<float>(config.rms_norm_eps);
  const Tensor prefix = ctx.workspace->tensor({tokens, hidden}, ctx.activation());
  const Tensor bank = ctx.workspace->tensor({block_count(config), tokens, hidden}, ctx.activation());
  K3_TRY_ASSIGN(const int64_t banked, run_layers(ctx, config, source, batch, prefix, bank));

  // Only the rows that want logits pay for the last mix, the norm and lm_head.
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  const Tensor last = ctx.workspace->tensor({rows, hidden}, ctx.activation());
  ops::gather_rows(ctx, prefix, batch.logit_rows, last);
  const Tensor last_bank = ctx.workspace->tensor({banked, rows, hidden}, ctx.activation());
  for (int64_t b = 0; b < banked; ++b) ops::gather_rows(ctx, bank.at(b), batch.logit_rows, last_bank.at(b));
  const WeightSet& all = source.globals();
  ops::attn_res_site(
      ctx, {.prefix = last, .blocks = last_bank, .query = all.output_res_query, .norm = all.final_norm, .eps = eps, .out = last});
  return source.lm_head(ctx, last, logits);
}

Status forward_hidden(const ops::Ctx& ctx, const Config& config, const WeightSource& source, const Batch& batch, const Tensor& hidden) {
  const Tensor prefix = ctx.workspace->tensor({batch.token_count(), config.hidden_size}, ctx.activation());
  const Tensor bank = ctx.workspace->tensor({block_count(config), batch.token_count(), config.hidden_size}, ctx.activation());
  K3_TRY_ASSIGN(const int64_t banked, run_layers(ctx, config, source, batch, prefix, bank));
  const WeightSet& all = source.globals();
  ops::attn_res_site(ctx, {.prefix = prefix,
                           .blocks = bank.slice(0, banked),
                           .query = all.output_res_query,
                           .norm = all.final_norm,
                           .eps = static_cast<float>(config.rms_norm_eps),
                           .out = hidden});
  return {};
}

}  // namespace k3
