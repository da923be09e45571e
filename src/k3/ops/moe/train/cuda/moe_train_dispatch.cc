// Routed experts in training on a GPU: slots sorted by expert on the device, one launch for all experts of a product.
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/gemm/linear_train.h"
#include "k3/ops/moe/train/cuda/moe_train.h"
#include "k3/ops/moe/moe.h"
#include "k3/ops/optim/fake_quant/fake_quant.h"
#include "k3/ops/optim/quantile/quantile.h"
#include "k3/ops/rms_norm/rms_norm_train.h"
#include "k3/ops/tape.h"

namespace k3::ops::cuda {
namespace {

// What the forward leaves for the backward.
struct Routed {
  Tensor scores, ids, weights;                     // [T, E], [T, topk] i32, [T, topk]
  Tensor offsets, token_of, slot_of, position_of;  // [E + 1], [P], [P], [T topk] i32
  RowTile* tiles = nullptr;
  int32_t tile_count = 0;
  Tensor x;            // [P, R] where it is quantised; else rows of z
  Tensor gate, up, h;  // [P, F]
  Tensor sum;          // [T, R] before the norm
};

struct Layer {
  const ops::RoutedExperts& args;
  int64_t tokens, width, experts, topk, hidden, positions;
  int64_t stride;  // from expert to expert, in elements: w1, w2 and w3 of each lie one after another
  explicit Layer(const ops::RoutedExperts& a)
      : args(a), tokens(a.z.dim(0)), width(a.z.dim(1)), experts(a.logits.dim(1)), topk(a.route.topk), hidden(a.experts[0].w1.rows),
        positions(tokens * topk), stride(0) {
    if (experts > 1) stride = (static_cast<const std::byte*>(a.experts[1].w1.data) - static_cast<const std::byte*>(a.experts[0].w1.data)) / 2;
  }
};

void note(const Ctx& ctx, int code, const char* what) { ctx.gpu->note(CudaStatus{code}, what); }

RouteTrain route_of(const Layer& l, const Routed& kept) {
  RouteTrain a{};
  a.tokens = l.tokens;
  a.experts = static_cast<int32_t>(l.experts);
  a.topk = static_cast<int32_t>(l.topk);
  a.logits = l.args.logits.f32();
  a.bias = l.args.bias ? l.args.bias.f32() : nullptr;
  a.scale = l.args.route.scale;
  a.renormalise = l.args.route.renormalise;
  a.scores = kept.scores.f32();
  a.ids = kept.ids.as<int32_t>();
  a.weights = kept.weights.f32();
  return a;
}

// Sums for the router's balancing, once a token: not when a region is computed again.
void report_routes(const Ctx& ctx, const Layer& l, const Routed& kept) {
  const Tape* const tape = ctx.tape;
  if (tape == nullptr || tape->repeating() || !l.args.bias) return;
  if (const Tensor histogram = tape->watched(l.args.bias.data, "histogram"); histogram && l.topk < l.experts) {
    ops::quantile_accumulate(ctx, QuantileInput<float>{kept.scores.f32(), l.tokens, l.experts, l.experts, l.topk, l.args.bias.f32(), tape->valid}, histogram.as<int32_t>());
  }
  if (const Tensor load = tape->watched(l.args.bias.data, "load")) {
    ops::expert_load(ctx, kept.ids.as<int32_t>(), l.tokens, l.topk, l.experts, tape->valid, load.as<int32_t>());
  }
}

void sort(const Ctx& ctx, const Layer& l, Routed& kept) {
  Workspace& memory = *ctx.workspace;
  const auto numbers = [&](int64_t count) { return memory.tensor({count}, DType::i32); };
  kept.offsets = numbers(l.experts + 1);
  kept.token_of = numbers(l.positions);
  kept.slot_of = numbers(l.positions);
  kept.position_of = numbers(l.positions);
  kept.tile_count = static_cast<int32_t>(l.positions / kMmaRows + l.experts);
  kept.tiles = static_cast<RowTile*>(memory.bytes(kept.tile_count * static_cast<int64_t>(sizeof(RowTile))));
  SortSlots s{};
  s.slots = l.positions;
  s.experts = static_cast<int32_t>(l.experts);
  s.topk = static_cast<int32_t>(l.topk);
  s.ids = kept.ids.as<int32_t>();
  s.counts = numbers(l.experts * sort_blocks(l.positions)).as<int32_t>();
  s.totals = numbers(l.experts).as<int32_t>();
  s.offsets = kept.offsets.as<int32_t>();
  s.token_of = kept.token_of.as<int32_t>();
  s.slot_of = kept.slot_of.as<int32_t>();
  s.position_of = kept.position_of.as<int32_t>();
  note(ctx, sort_slots_launch(s, ctx.stream), "sort by expert");
  note(ctx, row_tiles_launch(s.offsets, s.experts, kept.tiles, kept.tile_count, ctx.stream), "sort by expert");
}

// Products of the positions' rows with each expert's matrix.
MmaTrain rows_product(const Layer& l, const Routed& kept, int64_t n, int64_t k) {
  MmaTrain p{};
  p.a_stride = k;
  p.c_stride = n;
  p.b_group = l.stride;
  p.tiles = kept.tiles;
  p.tile_count = kept.tile_count;
  p.groups = static_cast<int32_t>(l.experts);
  p.n = static_cast<int32_t>(n);
  p.k = static_cast<int32_t>(k);
  return p;
}

// Gradients of each expert's matrix [m, n], FP32, added to.
MmaTrain depth_product(const Layer& l, const Routed& kept, int64_t m, int64_t n) {
  MmaTrain p{};
  p.a_stride = m;
  p.b_stride = p.c_stride = n;
  p.c_group = l.stride;
  p.offsets = kept.offsets.as<int32_t>();
  p.groups = static_cast<int32_t>(l.experts);
  p.m = static_cast<int32_t>(m);
  p.n = static_cast<int32_t>(n);
  p.c_f32 = p.accumulate = true;
  return p;
}

// What quantisation-aware training makes of the input of an experts' product (straight through).
void quantise(const Ctx& ctx, const Tensor& x) {
  if (ctx.mxfp8_experts) ops::mxfp8_fake_quant(ctx, x, x);
}

void experts_forward(const Ctx& ctx, const Layer& l, Routed& kept) {
  const ExpertWeights& first = l.args.experts[0];
  Workspace& memory = *ctx.workspace;
  for (Tensor* t : {&kept.gate, &kept.up, &kept.h}) *t = memory.tensor({l.positions, l.hidden}, DType::bf16);
  if (ctx.mxfp8_experts) {
    kept.x = memory.tensor({l.positions, l.width}, DType::bf16);
    note(ctx, gather_train_launch(l.args.z.data, kept.token_of.as<int32_t>(), l.positions, l.width, kept.x.data, ctx.stream), "gather");
    quantise(ctx, kept.x);
  }
  MmaTrain in = rows_product(l, kept, l.hidden, l.width);
  in.products = 2;
  in.b_stride = l.width;
  for (int i = 0; i < 2; ++i) {
    in.operands[i] = {kept.x ? kept.x.data : l.args.z.data, (i == 0 ? first.w1 : first.w3).data};
    in.a_rows[i] = kept.x ? nullptr : kept.token_of.as<int32_t>();
    in.c[i] = (i == 0 ? kept.gate : kept.up).data;
  }
  note(ctx, mma_rows_launch(in, ctx.stream), "experts, gate and up");
  cuda::glu_train(ctx, kept.gate, kept.up, l.args.activation, kept.h);
  quantise(ctx, kept.h);
  const bool retaining = memory.retaining();
  memory.retain(false);  // the rest is scratch
  {
    const Workspace::Scope scope(memory);
    const Tensor y = memory.tensor({l.positions, l.width}, DType::bf16);
    MmaTrain down = rows_product(l, kept, l.width, l.hidden);
    down.b_stride = l.hidden;
    down.operands[0] = {kept.h.data, first.w2.data};
    down.c[0] = y.data;
    note(ctx, mma_rows_launch(down, ctx.stream), "experts, down");
    note(ctx,
         scatter_train_launch({l.tokens, l.width, static_cast<int32_t>(l.topk), y.data, kept.position_of.as<int32_t>(), kept.weights.f32(), kept.sum.data,
                               false},
                              ctx.stream),
         "combine");
  }
  memory.retain(retaining);
}

// Gradients of the experts' matrices.
void weights_vjp(const Ctx& ctx, const Tape& tape, const Layer& l, const Routed& kept, const Tensor& dsum, const Tensor& dgate, const Tensor& dup) {
  const ExpertWeights& first = l.args.experts[0];
  const int64_t count = first.w1.rows * first.w1.cols;
  const auto grad = [&](const Weight& w) {
    const Tensor g = tape.parameter_grad(w.data, count);
    return g ? static_cast<void*>(g.data) : nullptr;
  };
  const int32_t* const tokens = kept.token_of.as<int32_t>();
  if (void* const to = grad(first.w2)) {
    MmaTrain p = depth_product(l, kept, l.width, l.hidden);
    p.operands[0] = {dsum.data, kept.h.data};
    p.a_rows[0] = tokens;
    p.c[0] = to;
    note(ctx, mma_depth_launch(p, ctx.stream), "experts, dW");
  }
  MmaTrain p = depth_product(l, kept, l.hidden, l.width);
  p.products = 0;
  for (const auto& [w, d] : {std::pair(&first.w1, &dgate), std::pair(&first.w3, &dup)}) {
    void* const to = grad(*w);
    if (to == nullptr) continue;
    p.operands[p.products] = {d->data, kept.x ? kept.x.data : l.args.z.data};
    p.b_rows[p.products] = kept.x ? nullptr : tokens;
    p.c[p.products++] = to;
  }
  if (p.products > 0) note(ctx, mma_depth_launch(p, ctx.stream), "experts, dW");
}

// From the gradient of the weighted sum to those of z, logits and the experts.
void experts_vjp(const Ctx& ctx, Tape& tape, const Layer& l, const Routed& kept, const Tensor& dsum) {
  const Workspace::Scope scope(*ctx.workspace);
  const ExpertWeights& first = l.args.experts[0];
  const Tensor dh = ctx.workspace->tensor({l.positions, l.hidden}, DType::bf16), dgate = ctx.workspace->tensor_like(dh);
  const Tensor dx = ctx.workspace->tensor({l.positions, l.width}, DType::bf16), dweights = ctx.workspace->tensor({l.tokens, l.topk});
  MmaTrain p = rows_product(l, kept, l.hidden, l.width);
  p.b_stride = l.hidden;
  p.b_plain = true;
  p.operands[0] = {dsum.data, first.w2.data};
  p.a_rows[0] = kept.token_of.as<int32_t>();
  p.c[0] = dh.data;
  note(ctx, mma_rows_launch(p, ctx.stream), "experts, dh");
  ExpertVjp e{};
  e.positions = l.positions;
  e.width = l.hidden;
  e.slot_of = kept.slot_of.as<int32_t>();
  e.weights = kept.weights.f32();
  e.gate = kept.gate.data;
  e.up = kept.up.data;
  e.h = kept.h.data;
  e.dh = e.dup = dh.data;
  e.dgate = dgate.data;
  e.dweights = dweights.f32();
  e.situ = l.args.activation.kind == GluKind::situ;
  e.beta = l.args.activation.beta;
  e.linear_beta = l.args.activation.linear_beta.value_or(0);
  note(ctx, expert_vjp_launch(e, ctx.stream), "experts, activation vjp");
  weights_vjp(ctx, tape, l, kept, dsum, dgate, dh);
  p = rows_product(l, kept, l.width, l.hidden);
  p.b_stride = l.width;
  p.b_plain = true;
  p.terms = 2;
  p.operands[0] = {dgate.data, first.w1.data};
  p.operands[1] = {dh.data, first.w3.data};
  p.c[0] = dx.data;
  note(ctx, mma_rows_launch(p, ctx.stream), "experts, dx");
  const Tape::Into dz = tape.into(l.args.z);
  note(ctx,
       scatter_train_launch({l.tokens, l.width, static_cast<int32_t>(l.topk), dx.data, kept.position_of.as<int32_t>(), nullptr, dz.grad.data, !dz.fresh},
                            ctx.stream),
       "combine vjp");
  const Tape::Into dlogits = tape.into(l.args.logits);
  K3_CHECK(dlogits.fresh, "router logits have one use");
  RouteTrain route = route_of(l, kept);
  route.dweights = dweights.f32();
  route.dlogits = dlogits.grad.f32();
  note(ctx, route_vjp_launch(route, ctx.stream), "router vjp");
}

}  // namespace

void routed_experts_train(const Ctx& ctx, const ops::RoutedExperts& args) noexcept {
  const Layer l(args);
  Routed kept;
  kept.scores = ctx.workspace->tensor({l.tokens, l.experts});
  kept.ids = ctx.workspace->tensor({l.tokens, l.topk}, DType::i32);
  kept.weights = ctx.workspace->tensor({l.tokens, l.topk});
  kept.sum = args.norm || args.shared_down ? ctx.workspace->tensor({l.tokens, l.width}, DType::bf16) : args.out;
  note(ctx, route_train_launch(route_of(l, kept), ctx.stream), "router");
  report_routes(ctx, l, kept);
  sort(ctx, l, kept);
  experts_forward(ctx, l, kept);
  if (args.norm) {
    cuda::rms_norm_forward(ctx, kept.sum, args.norm, args.eps, args.out);
  } else if (kept.sum.data != args.out.data) {
    accumulate(ctx, kept.sum, args.out, false);
  }
  if (args.shared_down) cuda::matmul(ctx, args.shared_hidden, Op::plain, weight_matrix(args.shared_down), Op::transposed, args.out, true);
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  // Experts belong to the model; the span outlives the step.
  tape->record([=](const Ctx& back) {
    const Tensor dout = tape->grad(args.out);
    if (!dout) return;
    if (args.shared_down) linear_vjp(back, *tape, args.shared_hidden, args.shared_down, dout);
    if (args.norm) {
      cuda::rms_norm_vjp(back, kept.sum, args.norm, args.eps, dout, dout, false, tape->parameter_grad(args.norm.data, args.norm.size()));
    }
    experts_vjp(back, *tape, Layer(args), kept, dout);
    tape->done(args.out);
  });
}

}  // namespace k3::ops::cuda
