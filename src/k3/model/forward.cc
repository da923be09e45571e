#include "k3/model/forward.h"

#include "k3/model/layers.h"
#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/rms_norm/rms_norm.h"
#include "k3/ops/tape.h"

namespace k3 {

namespace {

const LayerCache no_cache;  // in training

int64_t block_count(const Config& config) {
  const int64_t block = config.attn_res_block_size.value_or(0);
  return block > 0 ? (config.num_hidden_layers + block - 1) / block : 0;
}

// What goes from layer to layer.
struct Residual {
  Tensor prefix, bank;  // [T, hidden], [blocks, T, hidden]
  Tensor rest;          // of the prefix (attn_res.h), [T, hidden]; none where activations are FP32, and in training
  Tensor input_rest;    // of a sub-layer's input, likewise
  bool exact = true;    // rest is not read: nothing was rounded yet
  int64_t banked = 0;   // rows of the bank that are there
  Tensor output;        // [T, hidden], of sub-layers
  Tensor pending;       // the last one's output, not yet in the prefix
};

Residual make_residual(const ops::Ctx& ctx, const Config& config, int64_t tokens) {
  const auto rows = [&] { return ctx.workspace->tensor({tokens, config.hidden_size}, ctx.activation()); };
  Residual s;
  s.prefix = rows();
  s.bank = ctx.workspace->tensor({block_count(config), tokens, config.hidden_size}, ctx.activation());
  if (ctx.activation() == DType::bf16 && !ctx.training) {
    s.rest = rows();
    // One token: its products have columns to spare (gemm_cuda.h). Of more it would be a product of its own, and a row to write.
    if (tokens == 1) s.input_rest = rows();
  }
  s.output = rows();
  return s;
}

// All layers; afterwards `s` has what the last mix reads.
Status run_layers(const ops::Ctx& ctx, const Config& config, const WeightSource& source, const Batch& batch, Residual& s) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = batch.token_count(), hidden = config.hidden_size;
  const auto eps = static_cast<float>(config.rms_norm_eps);
  const bool res = config.attn_res_block_size.has_value();
  const int64_t block = config.attn_res_block_size.value_or(1);

  const Tensor input = ctx.workspace->tensor({tokens, hidden}, ctx.activation());  // of the sub-layer
  Tensor mixed, delta;  // input and s.output, or in training others for each sub-layer
  // What stands before a sub-layer: its input is mixed from the banked rows and the prefix, and normed. The sub-layer's first products
  // compute it.
  const auto site = [&](const Tensor& query, const Tensor& norm, bool starts_block) {
    mixed = ops::fresh(ctx, input);
    delta = ops::fresh(ctx, s.output);
    ops::AttnResSite out = {.delta = s.pending,
                            .prefix = s.prefix,
                            .rest = s.rest,
                            .exact = s.exact,
                            .bank_to = starts_block ? s.bank.at(s.banked) : Tensor(),
                            .blocks = s.bank.slice(0, s.banked),
                            .query = query,
                            .norm = norm,
                            .eps = eps,
                            .out = mixed,
                            .out_rest = s.input_rest};
    // In training it is computed here: a sub-layer that is computed again must find the sum as it was.
    if (ctx.training) {
      ops::attn_res_site(ctx, out);
      out = {.out = mixed};
    }
    if (s.pending) s.exact = false;
    s.pending = {};
    // The raw layer input is banked, not the mix.
    if (starts_block) ++s.banked;
    return out;
  };

  if (source.stream != nullptr) source.stream->begin_step(tokens);
  K3_TRY(source.embedding(ctx, batch.tokens, s.prefix));
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    K3_TRY_ASSIGN(const LayerWeights* const layer, source.layer(l));
    const LayerWeights& w = *layer;
    const LayerCache& cache = ctx.training ? no_cache : batch.caches[static_cast<size_t>(l)];

    const bool starts_block = res && l % block == 0;
    const ops::AttnResSite attention = site(w.attention_res_query, w.input_norm, starts_block);
    // The sum restarts from the attention output alone.
    const bool kda = config.attention[static_cast<size_t>(l)] == AttentionKind::kda;
    ops::region(ctx, starts_block ? s.prefix : delta, [&config, &w, &batch, &cache, kda, attention](const ops::Ctx& c, const Tensor& out) {
      kda ? kda_layer(c, config, w.kda, batch, cache, attention, out) : mla_layer(c, config, w.mla, batch, cache, attention, out);
    });
    if (starts_block) {
      s.exact = true;
    } else {
      s.pending = delta;
    }

    const ops::AttnResSite mlp = site(w.mlp_res_query, w.post_attention_norm, false);
    Status done;
    ops::region(ctx, delta, [&config, &w, &done, l, stream = source.stream, mlp, moe = config.is_moe(l)](const ops::Ctx& c, const Tensor& out) {
      if (!moe) return mlp_layer(c, activation_of(config), w.mlp, mlp, out);
      Status status = moe_layer(c, config, w.moe, l, stream, mlp, out);
      if (stream != nullptr) done = std::move(status);  // in memory nothing fails, and a region may be repeated after this frame
    });
    K3_TRY(std::move(done));
    s.pending = delta;
  }
  return {};
}

}  // namespace

Status forward(const ops::Ctx& ctx, const Config& config, const WeightSource& source, const Batch& batch,
               const Tensor& logits) {
  const Workspace::Scope scope(*ctx.workspace);
  Residual s = make_residual(ctx, config, batch.token_count());
  K3_TRY(run_layers(ctx, config, source, batch, s));

  // Only the rows that want logits pay for the last mix, the norm and lm_head.
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  const bool all_rows = batch.token_count() == 1 && rows == 1;
  const auto room = [&] { return ctx.workspace->tensor({rows, config.hidden_size}, ctx.activation()); };
  const auto wanted = [&](const Tensor& from) {
    if (all_rows) return from;
    const Tensor to = room();
    ops::gather_rows(ctx, from, batch.logit_rows, to);
    return to;
  };
  const Tensor prefix = wanted(s.prefix);
  Tensor rest = s.rest;
  if (rest && !all_rows) rest = s.exact ? room() : wanted(s.rest);  // room for what the last sum cuts off
  const Tensor bank = all_rows ? s.bank.slice(0, s.banked) : ctx.workspace->tensor({s.banked, rows, config.hidden_size}, ctx.activation());
  for (int64_t b = 0; b < s.banked && !all_rows; ++b) ops::gather_rows(ctx, s.bank.at(b), batch.logit_rows, bank.at(b));
  // Last: on a GPU a site reads all else before the kernel right in front of it has ended.
  const Tensor delta = s.pending ? wanted(s.pending) : Tensor();
  const Tensor last = room();
  const WeightSet& all = source.globals();
  ops::attn_res_site(ctx, {.delta = delta,
                           .prefix = prefix,
                           .rest = rest,
                           .exact = s.exact,
                           .blocks = bank,
                           .query = all.output_res_query,
                           .norm = all.final_norm,
                           .eps = static_cast<float>(config.rms_norm_eps),
                           .out = last});
  return source.lm_head(ctx, last, logits);
}

Status forward_hidden(const ops::Ctx& ctx, const Config& config, const WeightSource& source, const Batch& batch, const Tensor& hidden) {
  Residual s = make_residual(ctx, config, batch.token_count());
  K3_TRY(run_layers(ctx, config, source, batch, s));
  if (s.pending) ops::add(ctx, s.pending, s.prefix);
  const WeightSet& all = source.globals();
  ops::attn_res_site(ctx, {.prefix = s.prefix,
                           .blocks = s.bank.slice(0, s.banked),
                           .query = all.output_res_query,
                           .norm = all.final_norm,
                           .eps = static_cast<float>(config.rms_norm_eps),
                           .out = hidden});
  return {};
}

}  // namespace k3
