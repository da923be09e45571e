#include "k3/model/layers.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/kda/kda.h"
#include "k3/ops/rms_norm/rms_norm.h"
#include "k3/ops/short_conv/short_conv.h"

namespace k3 {
namespace {

// y = up(down(x)), no activation between.
void low_rank(const ops::Ctx& ctx, const ops::Weight& down, const ops::Weight& up, const Tensor& x, const Tensor& y) {
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor middle = ctx.workspace->tensor({x.dim(0), down.rows});
  ops::linear(ctx, x, down, middle);
  ops::linear(ctx, middle, up, y);
}

}  // namespace

void kda_layer(const ops::Ctx& ctx, const Config& config, const KdaWeights& w, const Batch& batch, const LayerCache& cache,
               const Tensor& x, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = batch.token_count(), heads = config.kda_num_heads, width = config.kda_head_dim;
  const int64_t channels = config.kda_width();
  const auto scratch = [&] { return ctx.workspace->tensor({tokens, channels}); };
  const auto by_head = [&](const Tensor& t) { return t.reshape({tokens, heads, width}); };

  // q, k, v: projection, causal convolution over the carried inputs, SiLU.
  const Tensor q = scratch(), k = scratch(), v = scratch();
  const ops::Weight* projections[] = {&w.q, &w.k, &w.v};
  const Tensor* taps[] = {&w.q_conv, &w.k_conv, &w.v_conv};
  const Tensor* mixed[] = {&q, &k, &v};
  const int64_t tail_elements = (config.short_conv_kernel_size - 1) * channels;
  std::vector<ops::ConvTail> tails(static_cast<size_t>(batch.sequence_count()));
  std::vector<float*> states(tails.size());
  for (int part = 0; part < 3; ++part) {
    for (size_t s = 0; s < tails.size(); ++s) {
      auto* tail = static_cast<std::byte*>(cache.state.conv_of(static_cast<int64_t>(s)));
      tails[s] = {tail + part * tail_elements * dtype_bytes(cache.state.conv_dtype), cache.state.conv_dtype};
      states[s] = cache.state.recurrent_of(static_cast<int64_t>(s));
    }
    ops::linear(ctx, x, *projections[part], *mixed[part]);
    ops::short_conv(ctx, *mixed[part], *taps[part], batch.offsets, tails, *mixed[part]);
  }

  // Decay input and write strength, then the recurrence.
  const Tensor z = scratch(), o = scratch();
  const Tensor beta = ctx.workspace->tensor({tokens, heads});
  low_rank(ctx, w.f_a, w.f_b, x, z);
  ops::linear(ctx, x, w.b, beta);
  ops::KdaArgs args;
  args.q = by_head(q);
  args.k = by_head(k);
  args.v = by_head(v);
  args.z = by_head(z);
  args.b = beta;
  args.a_log = w.a_log;
  args.dt_bias = w.dt_bias;
  if (config.gate_lower_bound) args.lower_bound = static_cast<float>(*config.gate_lower_bound);
  args.offsets = batch.offsets;
  args.states = states;
  args.out = by_head(o);
  ops::kda(ctx, args);

  // Output gate and norm per head; the gate reads the same input as the projections.
  const Tensor gate = z;  // its decay input is spent
  if (w.g) {
    ops::linear(ctx, x, w.g, gate);
  } else {
    low_rank(ctx, w.g_a, w.g_b, x, gate);
  }
  ops::gated_rms_norm(ctx, by_head(o), w.o_norm, gate, static_cast<float>(config.rms_norm_eps), q);
  ops::linear(ctx, q, w.o, out);
}

}  // namespace k3
