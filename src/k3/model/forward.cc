#include "k3/model/forward.h"

#include <algorithm>

#include "k3/model/layers.h"
#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/rms_norm/rms_norm.h"

namespace k3 {
namespace {

void copy(const Tensor& from, const Tensor& to) { std::copy_n(from.f32(), from.size(), to.f32()); }

}  // namespace

Status forward(const ops::Ctx& ctx, const Config& config, const WeightSource& source, const Batch& batch,
               const Tensor& logits) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = batch.token_count(), hidden = config.hidden_size;
  const auto eps = static_cast<float>(config.rms_norm_eps);
  const bool res = config.attn_res_block_size.has_value();
  const int64_t block = config.attn_res_block_size.value_or(1);
  const int64_t blocks = res ? (config.num_hidden_layers + block - 1) / block : 0;

  const Tensor prefix = ctx.workspace->tensor({tokens, hidden});  // running sum of the current block
  const Tensor mixed = ctx.workspace->tensor({tokens, hidden});   // input of the sub-layer
  const Tensor delta = ctx.workspace->tensor({tokens, hidden});   // its output
  const Tensor bank = ctx.workspace->tensor({blocks, tokens, hidden});
  int64_t banked = 0;
  const auto mix = [&](const Tensor& query, const Tensor& norm) {  // and norm: what the sub-layer reads
    if (res && banked > 0) {
      ops::attn_res(ctx, bank.slice(0, banked), prefix, query, eps, mixed, norm);
    } else {
      ops::rms_norm(ctx, prefix, norm, eps, mixed);
    }
  };

  if (source.stream != nullptr) source.stream->begin_step(tokens);
  K3_TRY(source.embedding(batch.tokens, prefix));
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    K3_TRY_ASSIGN(const LayerWeights* const layer, source.layer(l));
    const LayerWeights& w = *layer;
    const LayerCache& cache = batch.caches[static_cast<size_t>(l)];

    mix(w.attention_res_query, w.input_norm);
    const bool starts_block = res && l % block == 0;
    // The raw layer input is banked, not the mix, and the sum restarts from the attention output alone.
    if (starts_block) copy(prefix, bank.at(banked++));
    const Tensor& attended = starts_block ? prefix : delta;
    switch (config.attention[static_cast<size_t>(l)]) {
      case AttentionKind::kda: kda_layer(ctx, config, w.kda, batch, cache, mixed, attended); break;
      case AttentionKind::mla: mla_layer(ctx, config, w.mla, batch, cache, mixed, attended); break;
    }
    if (!starts_block) ops::add(ctx, delta, prefix);

    mix(w.mlp_res_query, w.post_attention_norm);
    if (config.is_moe(l)) {
      K3_TRY(moe_layer(ctx, config, w.moe, l, source.stream, mixed, delta));
    } else {
      mlp_layer(ctx, activation_of(config), w.mlp, mixed, delta);
    }
    ops::add(ctx, delta, prefix);
  }

  // Only the rows that want logits pay for the last mix, the norm and lm_head.
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  const Tensor last = ctx.workspace->tensor({rows, hidden});
  const Tensor last_bank = ctx.workspace->tensor({banked, rows, hidden});
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = batch.logit_rows[static_cast<size_t>(r)];
    std::copy_n(prefix.row(t), hidden, last.row(r));
    for (int64_t b = 0; b < banked; ++b) std::copy_n(bank.at(b).row(t), hidden, last_bank.at(b).row(r));
  }
  if (res) ops::attn_res(ctx, last_bank, last, source.globals().output_res_query, eps, last);
  ops::rms_norm(ctx, last, source.globals().final_norm, eps, last);
  return source.lm_head(ctx, last, logits);
}

}  // namespace k3
