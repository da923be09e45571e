// kda_train on a GPU: arguments for the kernels, scratch, heads in passes.
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/kda/cuda/kda_prefill_cuda.h"
#include "k3/ops/kda/kda_train.h"
#include "k3/ops/kda/train/cuda/kda_train_cuda.h"
#include "k3/ops/kda/train/cuda/kda_train_plain.h"
#include "k3/ops/rms_norm/cuda/gated_norm_cuda.h"
#include "k3/ops/short_conv/cuda/short_conv_cuda.h"

namespace k3::ops::cuda {
namespace {

struct Train {
  const Ctx& ctx;
  const ops::KdaTrainArgs& args;
  int64_t tokens, heads, dim, taps, sequences, rows;

  Train(const Ctx& c, const ops::KdaTrainArgs& a)
      : ctx(c), args(a), tokens(a.b.dim(0)), heads(a.b.dim(1)), dim(a.norm.dim(0)), taps(a.taps[0].dim(1)),
        sequences(static_cast<int64_t>(a.offsets.size()) - 1), rows(kda_train_rows(tokens, sequences)) {
    K3_CHECK(a.q_in.dtype == DType::bf16 && a.device_offsets != nullptr, "kda_train on a GPU: activations of dtype {}",
             dtype_name(a.q_in.dtype));
  }

  bool fast() const { return kda_train_fast(dim, taps, args.lower_bound, device_info().capability); }
  void note(int code, const char* what) const { ctx.gpu->note(CudaStatus{code}, what); }
  static float* numbers(const Tensor& t) { return t ? t.f32() : nullptr; }

  KdaTrainCudaArgs base() const {
    KdaTrainCudaArgs c{};
    c.heads = c.pass_heads = static_cast<int>(heads);
    c.rows = static_cast<int>(rows);
    c.sequences = static_cast<int>(sequences);
    const Tensor* inputs[3] = {&args.q_in, &args.k_in, &args.v_in};
    for (size_t part = 0; part < 3; ++part) {
      c.in[part] = inputs[part]->data;
      c.taps[part] = args.taps[part].f32();
    }
    c.z = args.z.data;
    c.gate = args.gate.data;
    c.b = args.b.data;
    c.b_f32 = args.b.dtype == DType::f32 ? 1 : 0;
    c.a_log = args.a_log.f32();
    c.dt_bias = args.dt_bias.f32();
    c.norm = args.norm.f32();
    c.lower_bound = args.lower_bound.value_or(0);
    c.eps = args.eps;
    c.offsets = args.device_offsets;
    c.initial = numbers(args.initial);
    c.final = numbers(args.final);
    return c;
  }

  KdaTrainPlainSizes plain_sizes(int blocks, bool backward) const {
    KdaTrainPlainSizes n{};
    n.dim = static_cast<int>(dim);
    n.taps = static_cast<int>(taps);
    n.bounded = args.lower_bound ? 1 : 0;
    n.backward = backward ? 1 : 0;
    if (backward) n.scratch = ctx.workspace->tensor({blocks, kda_train_plain_floats(dim)}).f32();
    return n;
  }
  int plain_blocks() const { return static_cast<int>(std::min<int64_t>(sequences * heads, std::max(1, device_info().sm_count))); }

  int64_t longest() const {
    int64_t most = 0;
    for (size_t s = 0; s + 1 < args.offsets.size(); ++s) most = std::max(most, args.offsets[s + 1] - args.offsets[s]);
    return most;
  }
  // The kernels of inference: several times faster, but their states have one dtype, and not too many of a sequence are exported.
  bool by_prefill() const {
    return dim == 128 && tokens > 0 && !args.initial && !args.final && longest() / kKdaTrainStride <= K3_KDA_MAX_EXPORTS;
  }

  void convolve(const KdaTrainCudaArgs& c, const KdaTrainSlots& slots, void* const (&mixed)[3]) const {
    const int64_t width = heads * dim;
    ShortConvArgs conv{};
    for (size_t part = 0; part < 3; ++part) {
      conv.x[part] = c.in[part];
      conv.y[part] = mixed[part];
      conv.x_stride[part] = conv.y_stride[part] = width;
      conv.taps[part] = c.taps[part];
    }
    conv.parts = 3;
    conv.channels = static_cast<int32_t>(width);
    conv.tokens = static_cast<int32_t>(tokens);
    conv.sequences = c.sequences;
    conv.offsets = c.offsets;
    conv.slots = slots.slot;
    conv.fresh = slots.fresh;
    conv.conv = ctx.workspace->tensor({sequences, 3, kTrainHalo, width}, DType::bf16).data;
    conv.conv_stride = 3 * kTrainHalo * width;
    conv.conv_bf16 = 1;
    ctx.gpu->note(short_conv_cuda(conv, ctx.stream), "kda_train short_conv");
  }

  void prefill(const KdaTrainCudaArgs& c) const {
    Workspace& w = *ctx.workspace;
    const int64_t width = heads * dim;
    const auto numbers_of = [&] { return static_cast<int32_t*>(w.bytes(sequences * 4)); };
    const KdaTrainSlots slots{numbers_of(), numbers_of(), numbers_of()};
    note(kda_train_slots_launch(slots, c.keep != 0 ? c.kept : nullptr, width * dim, c.offsets, c.sequences, ctx.stream), "kda_train slots");
    void* mixed[3];
    for (void*& x : mixed) x = w.tensor({tokens, width}, DType::bf16).data;
    convolve(c, slots, mixed);
    K3KdaPrefill p{};
    p.tokens = tokens, p.heads = heads, p.sequences = sequences, p.longest = longest();
    p.q = mixed[0], p.k = mixed[1], p.v = mixed[2], p.z = c.z;
    p.q_stride = p.k_stride = p.v_stride = p.z_stride = p.out_stride = width;
    p.b = c.b, p.b_stride = heads, p.b_f32 = c.b_f32;
    p.bounded = 1, p.lower_bound = c.lower_bound;
    p.a_log = c.a_log, p.dt_bias = c.dt_bias, p.offsets = c.offsets;
    p.state_bf16 = 1;
    p.states = c.keep != 0 ? c.kept : mixed[0];  // nothing is stored then
    p.slot_stride = width * dim;
    p.from = p.to = slots.none;
    p.export_every = c.keep != 0 ? static_cast<int32_t>(kKdaTrainStride) : 0;
    p.out = c.y;
    const KdaPrefillShape shape{tokens, heads, sequences, p.longest, args.lower_bound};
    const KdaPrefillPlan plan = kda_prefill_plan(shape, device_info());
    p.workspace = w.bytes(kda_prefill_workspace_bytes(shape, plan));
    ctx.gpu->note(kda_prefill_cuda(p, plan, ctx.stream), "kda_train prefill");
    ctx.gpu->note(gated_norm_cuda({tokens, heads, c.y, width, c.gate, width, c.norm, c.eps, c.y, width}, ctx.stream), "kda_train norm");
  }

  void forward(const Tensor& y, ops::KdaTrainSaved* saved) const {
    KdaTrainCudaArgs c = base();
    c.y = y.data;
    c.keep = saved != nullptr ? 1 : 0;
    if (saved != nullptr) saved->states = ctx.workspace->tensor({rows, heads, dim, dim}, fast() ? DType::bf16 : DType::f32);
    c.kept = saved != nullptr ? saved->states.data : nullptr;
    const Workspace::Scope scope(*ctx.workspace);
    if (fast() && by_prefill()) return prefill(c);
    if (fast()) return note(kda_train_forward_launch(c, static_cast<int>(dim), ctx.stream), "kda_train forward");
    note(kda_train_plain_launch(c, plain_sizes(0, false), plain_blocks(), ctx.stream), "kda_train forward of any size");
  }

  void gradients(KdaTrainCudaArgs& c, const ops::KdaTrainSaved& saved, const Tensor& dy, const ops::KdaTrainGrads& g) const {
    c.kept = saved.states.data;
    c.dy = dy.data;
    const Tensor* d_in[3] = {&g.dq_in, &g.dk_in, &g.dv_in};
    for (size_t part = 0; part < 3; ++part) {
      c.d_in[part] = d_in[part]->data;
      c.d_taps[part] = g.dtaps[part].f32();
    }
    c.dz = g.dz.data;
    c.dgate = g.dgate.data;
    c.db = g.db.data;
    c.d_final = numbers(g.d_final);
    c.d_initial = numbers(g.d_initial);
    c.d_a_log = g.da_log.f32();
    c.d_dt_bias = g.ddt_bias.f32();
    c.d_norm = g.dnorm.f32();
  }

  // Places for `pass` heads of every block.
  void scratch(KdaTrainCudaArgs& c, int64_t pass) const {
    Workspace& w = *ctx.workspace;
    const int64_t places = rows * pass, square = kTrainTiles * kTrainTile * kTrainTile;
    for (void** tile : {&c.kp, &c.qp, &c.km, &c.u, &c.d_o, &c.d_r}) *tile = w.tensor({places, kTrainRows, dim}, DType::bf16).data;
    for (void** squares : {&c.p, &c.t}) *squares = w.tensor({places, square}, DType::bf16).data;
    c.d_state = w.tensor({places, dim, dim}, DType::bf16).data;
    c.edges = w.tensor({places, kTrainTiles + 1, dim}).f32();
    c.row_numbers = w.tensor({places, 3 * kTrainRows}).f32();
    c.halo = w.tensor({places, 6 * kTrainHalo, dim}).f32();
    c.sums = w.tensor({places, 3 * kTrainTaps + 3, dim}).f32();
  }

  void vjp(const ops::KdaTrainSaved& saved, const Tensor& dy, const ops::KdaTrainGrads& g) const {
    KdaTrainCudaArgs c = base();
    gradients(c, saved, dy, g);
    const Workspace::Scope scope(*ctx.workspace);
    if (!fast()) {
      const int blocks = plain_blocks();
      c.sums = ctx.workspace->tensor({sequences * heads, 3 * taps + 3, dim}).f32();
      return note(kda_train_plain_launch(c, plain_sizes(blocks, true), blocks, ctx.stream), "kda_train vjp of any size");
    }
    auto* blocks = static_cast<KdaTrainBlock*>(ctx.workspace->bytes(rows * static_cast<int64_t>(sizeof(KdaTrainBlock))));
    c.blocks = blocks;
    note(kda_train_map_launch(blocks, c.rows, c.offsets, c.sequences, ctx.stream), "kda_train map");
    const int64_t pass = kda_train_pass_heads(heads, rows, dim);
    scratch(c, pass);
    const int width = static_cast<int>(dim);
    for (int64_t first = 0; first < heads; first += pass) {
      c.first_head = static_cast<int>(first);
      c.pass_heads = static_cast<int>(std::min(pass, heads - first));
      note(kda_train_inner_launch(c, width, ctx.stream), "kda_train vjp, blocks");
      const int parts = kda_train_scan_parts(sequences * c.pass_heads, dim, device_info().sm_count);
      note(kda_train_scan_launch(c, width, parts, ctx.stream), "kda_train vjp, states");
      note(kda_train_grads_launch(c, width, ctx.stream), "kda_train vjp, inputs");
      note(kda_train_sums_launch(c, width, ctx.stream), "kda_train vjp, sums");
    }
  }
};

}  // namespace

Status kda_train_supported(int64_t heads, int64_t dim, int64_t taps) {
  if (dim > kTrainPlainDim) {
    return fail(Code::unsupported, "KDA with {} heads of {} and {} taps cannot be trained on a GPU: heads may be at most {} wide there",
                heads, dim, taps, kTrainPlainDim);
  }
  return {};
}

void kda_train_forward(const Ctx& ctx, const ops::KdaTrainArgs& args, const Tensor& y, ops::KdaTrainSaved* saved) noexcept {
  const Train train(ctx, args);
  if (train.sequences > 0) train.forward(y, saved);
}

void kda_train_vjp(const Ctx& ctx, const ops::KdaTrainArgs& args, const ops::KdaTrainSaved& saved, const Tensor& dy,
                   const ops::KdaTrainGrads& grads) noexcept {
  const Train train(ctx, args);
  if (train.sequences > 0) train.vjp(saved, dy, grads);
}

}  // namespace k3::ops::cuda
