// The row-wise training forms of train_dispatch.h: norms, activations, sums, embedding, loss.
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/cuda/train_rows.h"
#include "k3/ops/gemm/linear_train.h"
#include "k3/ops/kda/kda_train.h"
#include "k3/ops/mla/cuda/mla_train.h"
#include "k3/ops/moe/train/cuda/moe_train.h"
#include "k3/ops/situ_glu/situ_glu.h"
#include "k3/ops/tape.h"
#include "k3/ops/train_step.h"

namespace k3::ops::cuda {
namespace {

constexpr int64_t kLossTokens = 4096;  // whose logits are in memory at once

void note(const Ctx& ctx, int code, const char* what) { ctx.gpu->note(CudaStatus{code}, what); }

GluTrain glu_of(const Tensor& gate, const Tensor& up, const ops::Glu& kind) {
  GluTrain a{};
  a.count = gate.size();
  a.gate = gate.data;
  a.up = up.data;
  a.situ = kind.kind == GluKind::situ;
  a.beta = kind.beta;
  a.linear_beta = kind.linear_beta.value_or(0);
  return a;
}

}  // namespace

void accumulate(const Ctx& ctx, const Tensor& x, const Tensor& y, bool add) noexcept {
  K3_CHECK(x.dtype == y.dtype && x.size() == y.size() && (x.dtype == DType::bf16 || x.dtype == DType::f32), "accumulate: {} {} to {}",
           dtype_name(x.dtype), x.shape_text(), y.shape_text());
  if (x.size() > 0) note(ctx, accumulate_launch(x.data, y.data, x.size(), x.dtype == DType::f32, add, ctx.stream), add ? "add" : "copy");
}

void rms_norm_forward(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept {
  note(ctx, norm_train_launch({x.dim(0), x.dim(1), x.data, x.stride(0), weight.f32(), eps, out.data, out.stride(0)}, ctx.stream), "norm");
}

void rms_norm_vjp(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& dout, const Tensor& dx, bool accumulate,
                  const Tensor& dweight) noexcept {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t width = x.dim(1);
  const Tensor partial = dweight ? ctx.workspace->tensor({kPartialRows, width}) : Tensor();
  note(ctx,
       norm_vjp_launch({x.dim(0), width, x.data, x.stride(0), weight.f32(), eps, dout.data, dout.stride(0), dx.data, dx.stride(0), accumulate,
                        partial ? partial.f32() : nullptr},
                       ctx.stream),
       "norm vjp");
  if (dweight) note(ctx, sum_rows_launch(partial.f32(), kPartialRows, width, dweight.f32(), ctx.stream), "sum of rows");
}

void fold_query(const Ctx& ctx, const Tensor& norm, const Tensor& projection, const Tensor& query) noexcept {
  note(ctx, fold_launch(norm.f32(), projection.f32(), query.f32(), query.size(), ctx.stream), "fold");
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  tape->record([=](const Ctx& back) {
    const Tensor dquery = tape->grad(query);
    if (!dquery) return;
    const Tensor dnorm = tape->parameter_grad(norm.data, norm.size()), dprojection = tape->parameter_grad(projection.data, norm.size());
    note(back,
         fold_vjp_launch(norm.f32(), projection.f32(), dquery.f32(), dnorm ? dnorm.f32() : nullptr, dprojection ? dprojection.f32() : nullptr,
                         query.size(), back.stream),
         "fold vjp");
    tape->done(query);
  });
}

void glu_train(const Ctx& ctx, const Tensor& gate, const Tensor& up, const ops::Glu& kind, const Tensor& out) noexcept {
  GluTrain a = glu_of(gate, up, kind);
  a.out = out.data;
  if (a.count > 0) note(ctx, glu_train_launch(a, ctx.stream), "glu");
}

void glu_vjp(const Ctx& ctx, const Tensor& gate, const Tensor& up, const ops::Glu& kind, const Tensor& dout, const Tensor& dgate,
             const Tensor& dup) noexcept {
  GluTrain a = glu_of(gate, up, kind);
  a.dout = dout.data;
  a.dgate = dgate.data;
  a.dup = dup.data;
  if (a.count > 0) note(ctx, glu_vjp_launch(a, ctx.stream), "glu vjp");
}

void embedding_train(const Ctx& ctx, const Weight& table, const Tensor& out) noexcept {
  note(ctx, embedding_train_launch(ctx.step->tokens, out.dim(0), table.rows, table.data, table.cols, out.data, ctx.stream), "embedding");
  Tape* const tape = ctx.tape;
  if (tape == nullptr) return;
  tape->record([=](const Ctx& back) {
    const Tensor dout = tape->grad(out);
    if (!dout) return;
    if (const Tensor dtable = tape->parameter_grad(table.data, table.rows * table.cols)) embedding_vjp(back, dout, dtable);
    tape->done(out);
  });
}

void embedding_vjp(const Ctx& ctx, const Tensor& dout, const Tensor& dtable) noexcept {
  const TrainStep& step = train_step(ctx);
  note(ctx, embedding_vjp_launch(step.by_id, step.id_starts, step.ids, step.distinct, dout.data, dout.dim(1), dtable.f32(), ctx.stream),
       "embedding vjp");
}

void cross_entropy(const Ctx& ctx, const Tensor& x, const Weight& head, double scale) noexcept {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = x.dim(0), vocab = head.rows, chunk = std::min(tokens, kLossTokens);
  Tape* const tape = ctx.tape;
  const Tensor weight = weight_matrix(head), logits = ctx.workspace->tensor({chunk, vocab}), losses = ctx.workspace->tensor({tokens});
  const Tensor slopes = tape != nullptr ? ctx.workspace->tensor({chunk, vocab}, DType::bf16) : Tensor();
  Tape::Into dx;
  Tensor dhead;
  if (tape != nullptr) {
    dx = tape->into(x);
    dhead = tape->parameter_grad(head.data, vocab * head.cols);
  }
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t end = std::min(tokens, begin + chunk);
    const Tensor part = logits.slice(0, end - begin), rows = x.slice(begin, end);
    cuda::matmul(ctx, rows, Op::plain, weight, Op::transposed, part, false);
    note(ctx,
         loss_rows_launch({end - begin, vocab, part.f32(), train_step(ctx).targets + begin, static_cast<float>(scale), losses.f32() + begin, slopes.data},
                          ctx.stream),
         "loss");
    if (tape == nullptr) continue;
    const Tensor d = slopes.slice(0, end - begin);
    cuda::matmul(ctx, d, Op::plain, weight, Op::plain, dx.grad.slice(begin, end), !dx.fresh);
    if (dhead) cuda::matmul(ctx, d, Op::transposed, rows, Op::plain, dhead.reshape({vocab, head.cols}), true);
  }
  note(ctx, loss_sum_launch(losses.f32(), tokens, train_step(ctx).nats, ctx.stream), "loss");
}

Status check_train_sizes(const TrainSizes& s) {
  const auto refuse = [](std::string_view what, int64_t value, std::string_view takes) {
    return fail(Code::unsupported, "training on a GPU: {} is {}; {}. --device cpu takes any", what, value, takes);
  };
  if (s.hidden % 2 != 0 || s.hidden > 8192) return refuse("hidden_size", s.hidden, "even sizes up to 8,192 are taken");
  if (s.experts > kMostExperts) return refuse("num_experts", s.experts, "up to 1,024 are taken");
  if (s.topk > kMostChosen) return refuse("num_experts_per_token", s.topk, "up to 32 are taken");
  if (s.expert_hidden % 2 != 0) return refuse("moe_intermediate_size", s.expert_hidden, "even sizes are taken");
  if (s.mla_value > 0 && !mla_train_takes(s.mla_nope, s.mla_rope, s.mla_value)) {
    return refuse("qk_nope_head_dim + qk_rope_head_dim", s.mla_nope + s.mla_rope, "up to 192 with values of up to 128 are taken");
  }
  if (s.blocks >= kMostSites) return refuse("the number of AttnRes blocks", s.blocks, "up to 64 are taken");
  return s.kda_heads > 0 ? kda_train_supported(s.kda_heads, s.kda_dim, s.kda_taps) : Status();
}

}  // namespace k3::ops::cuda
