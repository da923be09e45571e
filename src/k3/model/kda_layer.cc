#include "k3/model/layers.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/kda/kda.h"

namespace k3 {

void kda_layer(const ops::Ctx& ctx, const Config& config, const KdaWeights& w, const Batch& batch, const LayerCache& cache,
               const ops::AttnResSite& x, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = batch.token_count(), heads = config.kda_num_heads, width = config.kda_head_dim;
  const int64_t channels = config.kda_width();
  const auto scratch = [&](int64_t columns) { return ctx.workspace->tensor({tokens, columns}, ctx.activation()); };
  const auto by_head = [&](const Tensor& t) { return t.reshape({tokens, heads, width}); };

  // Everything that reads x, as one stream of weights; then the up halves of the low-rank pairs.
  const Tensor q = scratch(channels), k = scratch(channels), v = scratch(channels), gate = scratch(channels);
  const Tensor z = scratch(channels), beta = scratch(heads), z_low = scratch(w.f_a.rows);
  const Tensor gate_low = w.g ? Tensor() : scratch(w.g_a.rows);
  const ops::LinearPart parts[] = {{.w = w.q, .y = q},
                                   {.w = w.k, .y = k},
                                   {.w = w.v, .y = v},
                                   {.w = w.f_a, .y = z_low},
                                   {.w = w.b, .y = beta},
                                   {.w = w.g ? w.g : w.g_a, .y = w.g ? gate : gate_low}};
  ops::linear_many(ctx, x, parts);

  // Convolution, recurrence and gated norm, head by head.
  ops::KdaMixArgs args;
  args.kda.q = by_head(q);
  args.kda.k = by_head(k);
  args.kda.v = by_head(v);
  args.kda.z = by_head(z);
  args.kda.b = beta;
  args.kda.a_log = w.a_log;
  args.kda.dt_bias = w.dt_bias;
  if (config.gate_lower_bound) args.kda.lower_bound = static_cast<float>(*config.gate_lower_bound);
  args.kda.offsets = batch.offsets;
  args.kda.out = by_head(scratch(channels));
  args.taps[0] = &w.q_conv;
  args.taps[1] = &w.k_conv;
  args.taps[2] = &w.v_conv;
  args.norm = w.o_norm;
  args.gate = gate;
  args.eps = static_cast<float>(config.rms_norm_eps);
  args.y = scratch(channels);
  if (x.out_rest) args.y_rest = scratch(channels);
  args.z_low = z_low;
  args.z_up = w.f_b;
  args.gate_low = gate_low;
  args.gate_up = w.g_b;
  ops::kda_mix(ctx, args, cache.state, cache.exports, cache.device_exports);
  ops::linear(ctx, args.y, w.o, out, {.x_rest = args.y_rest});
}

}  // namespace k3
