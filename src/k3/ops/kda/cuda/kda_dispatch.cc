// The token mixer of a KDA layer on a GPU: one kernel for steps of single tokens; convolution, recurrence and norm for longer ones. Head
// sizes and GPUs that these do not know take one plain kernel.
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/kda/cuda/kda_any_cuda.h"
#include "k3/ops/kda/cuda/kda_decode_cuda.h"
#include "k3/ops/kda/cuda/kda_prefill_cuda.h"
#include "k3/ops/kda/kda.h"
#include "k3/ops/rms_norm/cuda/gated_norm_cuda.h"
#include "k3/ops/short_conv/cuda/short_conv_cuda.h"

namespace k3::ops::cuda {
namespace {

struct Mix {
  const Ctx& ctx;
  const KdaMixArgs& args;
  const StateSlots& state;
  const DeviceExports& exports;
  int64_t export_count;

  int64_t tokens() const { return args.kda.q.dim(0); }
  int64_t heads() const { return args.kda.q.dim(1); }
  int64_t sequences() const { return static_cast<int64_t>(args.kda.offsets.size()) - 1; }

  KdaWeights weights() const {
    KdaWeights w{};
    for (size_t part = 0; part < 3; ++part) w.taps[part] = args.taps[part]->f32();
    w.a_log = args.kda.a_log.f32();
    w.dt_bias = args.kda.dt_bias.f32();
    w.norm = args.norm.f32();
    w.lower_bound = args.kda.lower_bound.value_or(0);
    w.norm_eps = args.eps;
    w.heads = static_cast<int32_t>(heads());
    return w;
  }

  bool fuses_low() const {
    const auto plain = [](const Weight& w) { return !w || (w.scheme == Scheme::bf16 && w.cols == 128); };
    return !ctx.deterministic && plain(args.z_up) && plain(args.gate_up) &&
           kda_decode_takes_low(tokens() * heads(), state.recurrent_dtype == DType::bf16, device_info());
  }
  void low_products() const {
    const Tensor z = args.kda.z.reshape({tokens(), heads() * args.kda.q.dim(2)});
    if (args.z_low && args.gate_low) return cuda::linear_two(ctx, {args.z_low, args.z_up, z}, {args.gate_low, args.gate_up, args.gate});
    const auto one = [&](const Tensor& x, const Weight& w, const Tensor& y) {
      const ops::LinearPart part{.w = w, .y = y};
      if (x) cuda::linear_many(ctx, x, {&part, 1});
    };
    one(args.z_low, args.z_up, z);
    one(args.gate_low, args.gate_up, args.gate);
  }

  KdaRows rows() const {
    KdaRows r{};
    const Tensor* x[3] = {&args.kda.q, &args.kda.k, &args.kda.v};
    for (size_t part = 0; part < 3; ++part) {
      r.x[part] = x[part]->data;
      r.x_stride[part] = x[part]->stride(0);
    }
    r.z = args.kda.z.data;
    r.z_stride = args.kda.z.stride(0);
    r.gate = args.gate.data;
    r.gate_stride = args.gate.stride(0);
    r.beta = args.kda.b.data;
    r.beta_stride = args.kda.b.stride(0);
    r.out = args.y.data;
    r.out_stride = args.y.stride(0);
    return r;
  }

  KdaSlots slots() const {
    KdaSlots s{};
    s.state = state.recurrent;
    s.state_stride = state.recurrent_stride;
    s.conv = state.conv;
    s.conv_stride = state.conv_stride;
    s.slots = state.slots;
    s.state_bf16 = state.recurrent_dtype == DType::bf16;
    s.conv_bf16 = state.conv_dtype == DType::bf16;
    return s;
  }

  bool any_size() const {
    const DeviceInfo& device = device_info();
    return args.kda.q.dim(2) != 128 || args.taps[0]->dim(1) != 4 || device.capability < 90 || device.capability >= 100;
  }

  void plain() const {
    low_products();
    KdaAnyArgs a;
    a.weights = weights();
    a.rows = rows();
    a.beta_f32 = args.kda.b.dtype == DType::f32;
    a.slots = slots();
    a.dim = static_cast<int>(args.kda.q.dim(2));
    a.taps = static_cast<int>(args.taps[0]->dim(1));
    a.sequences = static_cast<int>(sequences());
    a.offsets = ctx.step->offsets;
    a.exports = static_cast<int>(export_count);
    a.export_sequences = exports.sequences;
    a.export_tokens = exports.tokens;
    a.export_slots = exports.slots;
    a.out_rest = args.y_rest.data;
    ctx.gpu->note(kda_any_cuda(a, ctx.stream), "kda of any size");
  }

  void decode() const {
    KdaDecodeArgs d{};
    d.weights = weights();
    d.rows = rows();
    d.slots = slots();
    d.batch = static_cast<int32_t>(tokens());
    d.out_rest = args.y_rest.data;
    // Slots and states were written by the step before, and a step begins with a copy, which everything waits for.
    d.launch.dependent = d.launch.early_state = 1;
    if (args.z_low && fuses_low()) {
      d.low.z_w = args.z_up.data;
      d.low.z_in = args.z_low.data;
      d.low.z_stride = args.z_low.stride(0);
      if (args.gate_low) {
        d.low.gate_w = args.gate_up.data;
        d.low.gate_in = args.gate_low.data;
        d.low.gate_stride = args.gate_low.stride(0);
      }
    } else {
      low_products();
    }
    ctx.gpu->note(kda_decode_cuda(d, ctx.stream), "kda decode");
  }

  void convolve(const Tensor (&mixed)[3]) const {
    const int64_t channels = heads() * 128;
    ShortConvArgs c{};
    const Tensor* x[3] = {&args.kda.q, &args.kda.k, &args.kda.v};
    for (size_t part = 0; part < 3; ++part) {
      c.x[part] = x[part]->data;
      c.x_stride[part] = x[part]->stride(0);
      c.y[part] = mixed[part].data;
      c.y_stride[part] = channels;
      c.taps[part] = args.taps[part]->f32();
    }
    c.parts = 3;
    c.channels = static_cast<int32_t>(channels);
    c.tokens = static_cast<int32_t>(tokens());
    c.sequences = static_cast<int32_t>(sequences());
    c.offsets = ctx.step->offsets;
    c.slots = state.slots;
    c.conv = state.conv;
    c.conv_stride = state.conv_stride;
    c.conv_bf16 = state.conv_dtype == DType::bf16;
    if (export_count > 0) {
      c.exports = static_cast<int32_t>(export_count);
      c.export_sequences = exports.sequences;
      c.export_tokens = exports.tokens;
      c.export_slots = exports.slots;
    }
    ctx.gpu->note(short_conv_cuda(c, ctx.stream), "short_conv");
  }

  void recur(const Tensor (&mixed)[3], const Tensor& out) const {
    const int64_t channels = heads() * 128;
    K3KdaPrefill p{};
    p.tokens = tokens();
    p.heads = heads();
    p.sequences = sequences();
    p.longest = ctx.step->longest;
    p.q = mixed[0].data;
    p.k = mixed[1].data;
    p.v = mixed[2].data;
    p.q_stride = p.k_stride = p.v_stride = channels;
    p.z = args.kda.z.data;
    p.z_stride = args.kda.z.stride(0);
    p.b = args.kda.b.data;
    p.b_stride = args.kda.b.stride(0);
    p.b_f32 = args.kda.b.dtype == DType::f32;
    p.bounded = args.kda.lower_bound.has_value();
    p.lower_bound = args.kda.lower_bound.value_or(0);
    p.state_bf16 = state.recurrent_dtype == DType::bf16;
    p.a_log = args.kda.a_log.f32();
    p.dt_bias = args.kda.dt_bias.f32();
    p.offsets = ctx.step->offsets;
    p.states = state.recurrent;
    p.slot_stride = state.recurrent_stride;
    p.from = p.to = state.slots;
    p.exports = reinterpret_cast<const K3KdaExport*>(exports.records);
    p.export_count = export_count;
    p.out = out.data;
    p.out_stride = channels;
    const KdaPrefillShape shape{p.tokens, p.heads, p.sequences, p.longest, args.kda.lower_bound};
    const KdaPrefillPlan plan =
        kda_prefill_plan(shape, device_info(), ctx.deterministic ? KdaPrefillForm::recurrent : KdaPrefillForm::automatic);
    p.workspace = ctx.workspace->bytes(kda_prefill_workspace_bytes(shape, plan));
    ctx.gpu->note(kda_prefill_cuda(p, plan, ctx.stream), "kda prefill");
  }

  void prefill() const {
    const Workspace::Scope scope(*ctx.workspace);
    low_products();
    const int64_t channels = heads() * 128;
    Tensor mixed[3];
    for (Tensor& t : mixed) t = ctx.workspace->tensor({tokens(), channels}, DType::bf16);
    convolve(mixed);
    const Tensor& out = args.kda.out;
    recur(mixed, out);
    ctx.gpu->note(gated_norm_cuda({tokens(), heads(), out.data, out.stride(0), args.gate.data, args.gate.stride(0), args.norm.f32(),
                                   args.eps, args.y.data, args.y.stride(0), args.y_rest.data},
                                  ctx.stream),
                  "gated norm");
  }
};

}  // namespace

void kda_mix(const Ctx& ctx, const ops::KdaMixArgs& args, const StateSlots& state, std::span<const StateExport> exports,
             const DeviceExports& device_exports) noexcept {
  static_assert(sizeof(DeviceExport) == sizeof(K3KdaExport));
  K3_CHECK(args.kda.q.dtype == DType::bf16, "kda on a GPU: q {} {}", dtype_name(args.kda.q.dtype), args.kda.q.shape_text());
  if (args.kda.q.dim(0) == 0) return;
  K3_CHECK(!args.y_rest || args.y_rest.stride(0) == args.y.stride(0), "kda on a GPU: y {}, its rest {}", args.y.stride(0), args.y_rest.stride(0));
  const Mix mix{ctx, args, state, device_exports, static_cast<int64_t>(exports.size())};
  if (mix.any_size()) return mix.plain();
  // Every sequence has one token or none, and nothing is wanted on the way.
  if (ctx.step->longest == 1 && exports.empty() && mix.tokens() == mix.sequences()) return mix.decode();
  mix.prefill();
}

}  // namespace k3::ops::cuda
