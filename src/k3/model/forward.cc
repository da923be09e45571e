#include "k3/model/forward.h"

#include "k3/model/layers.h"
#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/rms_norm/rms_norm.h"

namespace k3 {

Status forward(const ops::Ctx& ctx, const Config& config, const WeightSource& source, const Batch& batch,
               const Tensor& logits) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = batch.token_count(), hidden = config.hidden_size;
  const auto eps = static_cast<float>(config.rms_norm_eps);
  const bool res = config.attn_res_block_size.has_value();
  const int64_t block = config.attn_res_block_size.value_or(1);
  const int64_t blocks = res ? (config.num_hidden_layers + block - 1) / block : 0;

  const auto scratch = [&](int64_t rows) { return ctx.workspace->tensor({rows, hidden}, ctx.activation()); };
  const Tensor prefix = scratch(tokens);  // running sum of the current block
  const Tensor mixed = scratch(tokens);   // input of the sub-layer
  const Tensor delta = scratch(tokens);   // its output
  const Tensor bank = ctx.workspace->tensor({blocks, tokens, hidden}, ctx.activation());
  int64_t banked = 0;
  Tensor pending;  // the last sub-layer's output, not yet in the prefix
  // What stands before a sub-layer: its input is mixed from the banked rows and the prefix, and normed. The sub-layer's first products
  // compute it.
  const auto site = [&](const Tensor& query, const Tensor& norm, bool starts_block) {
    const ops::AttnResSite out = {.delta = pending,
                                 .prefix = prefix,
                                 .bank_to = starts_block ? bank.at(banked) : Tensor(),
                                 .blocks = bank.slice(0, banked),
                                 .query = query,
                                 .norm = norm,
                                 .eps = eps,
                                 .out = mixed};
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
    const LayerCache& cache = batch.caches[static_cast<size_t>(l)];

    const bool starts_block = res && l % block == 0;
    const ops::AttnResSite attention = site(w.attention_res_query, w.input_norm, starts_block);
    // The sum restarts from the attention output alone.
    const Tensor& attended = starts_block ? prefix : delta;
    switch (config.attention[static_cast<size_t>(l)]) {
      case AttentionKind::kda: kda_layer(ctx, config, w.kda, batch, cache, attention, attended); break;
      case AttentionKind::mla: mla_layer(ctx, config, w.mla, batch, cache, attention, attended); break;
    }
    if (!starts_block) pending = delta;

    const ops::AttnResSite mlp = site(w.mlp_res_query, w.post_attention_norm, false);
    if (config.is_moe(l)) {
      K3_TRY(moe_layer(ctx, config, w.moe, l, source.stream, mlp, delta));
    } else {
      mlp_layer(ctx, activation_of(config), w.mlp, mlp, delta);
    }
    pending = delta;
  }
  if (pending) ops::add(ctx, pending, prefix);

  // Only the rows that want logits pay for the last mix, the norm and lm_head.
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  const Tensor last = scratch(rows);
  ops::gather_rows(ctx, prefix, batch.logit_rows, last);
  const Tensor last_bank = ctx.workspace->tensor({banked, rows, hidden}, ctx.activation());
  for (int64_t b = 0; b < banked; ++b) ops::gather_rows(ctx, bank.at(b), batch.logit_rows, last_bank.at(b));
  const WeightSet& all = source.globals();
  ops::attn_res_site(
      ctx, {.prefix = last, .blocks = last_bank, .query = all.output_res_query, .norm = all.final_norm, .eps = eps, .out = last});
  return source.lm_head(ctx, last, logits);
}

}  // namespace k3
