// The row-wise ops of dispatch.h: embedding, sites, norms, sums, copies, gates.
#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/attn_res/cuda/attn_res_cuda.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/elementwise/cuda/elementwise_cuda.h"
#include "k3/ops/embedding/cuda/embedding_cuda.h"
#include "k3/ops/rms_norm/cuda/rms_norm_cuda.h"
#include "k3/ops/situ_glu/cuda/situ_glu_cuda.h"
#include "k3/ops/situ_glu/situ_glu.h"

namespace k3::ops::cuda {
namespace {

void check_rows(const Tensor& t, const char* what) {
  K3_CHECK(t.rank == 2 && t.dtype == DType::bf16, "{}: {} of dtype {} on a GPU", what, t.shape_text(), dtype_name(t.dtype));
}

// y = x (op) y
RowPair into(const Tensor& x, const Tensor& y, const char* what) {
  check_rows(x, what);
  check_rows(y, what);
  return {.rows = y.dim(0),
          .width = y.dim(1),
          .x = x.data,
          .x_stride = x.stride(0),
          .y = y.data,
          .y_stride = y.stride(0),
          .out = y.data,
          .out_stride = y.stride(0),
          .dependent = true};
}

}  // namespace

void embedding(const Ctx& ctx, const Weight& table, const Tensor& out) noexcept {
  check_rows(out, "embedding");
  K3_CHECK(table.scheme == Scheme::bf16 && table.cols == out.dim(1), "embedding: table");
  ctx.gpu->note(embedding_cuda({.tokens = out.dim(0),
                                .hidden = out.dim(1),
                                .vocab = table.rows,
                                .table = table.data,
                                .table_stride = table.cols,
                                .ids = ctx.step->tokens,
                                .out = out.data,
                                .out_stride = out.stride(0),
                                .dependent = true},
                               ctx.stream),
                "embedding");
}

void attn_res_site(const Ctx& ctx, const ops::AttnResSite& site) noexcept {
  check_rows(site.prefix, "attn_res");
  check_rows(site.out, "attn_res");
  AttnResSite s;
  s.tokens = site.prefix.dim(0);
  s.hidden = site.prefix.dim(1);
  if (s.tokens == 0) return;
  if (site.blocks && site.blocks.dim(0) > 0) {
    s.blocks = static_cast<int>(site.blocks.dim(0));
    s.bank = site.blocks.data;
    s.bank_block_stride = site.blocks.stride(0);
    s.bank_stride = site.blocks.stride(1);
  }
  s.prefix = site.prefix.data;
  s.prefix_stride = site.prefix.stride(0);
  if (site.delta) {
    s.delta = site.delta.data;
    s.delta_stride = site.delta.stride(0);
    s.prefix_out = site.prefix.data;
    s.prefix_out_stride = site.prefix.stride(0);
  }
  if (site.rest) {
    s.rest = site.exact ? nullptr : site.rest.data;
    s.rest_out = site.delta ? site.rest.data : nullptr;
    s.rest_stride = site.rest.stride(0);
  }
  if (site.bank_to) {
    s.bank_out = site.bank_to.data;
    s.bank_out_stride = site.bank_to.stride(0);
  }
  // With one source the scores do not matter, but the kernel wants something to score with.
  s.query = s.blocks > 0 ? site.query.f32() : site.norm.f32();
  s.norm = site.norm.data;
  s.eps = s.norm_eps = site.eps;
  s.out = site.out.data;
  s.out_stride = site.out.stride(0);
  s.out_rest = site.out_rest.data;
  // Bank and prefix are read before the kernel right before has ended. With a delta they are older, and the kernel that makes the
  // delta lets this one start only when all before it is complete (gemm_dispatch.cc; the experts and gathers do so, too).
  s.dependent = static_cast<bool>(site.delta);
  ctx.gpu->note(attn_res_cuda(s, ctx.stream), "attn_res");
}

void rms_norm(const Ctx& ctx, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) noexcept {
  check_rows(x, "rms_norm");
  check_rows(out, "rms_norm");
  RmsNorm n;
  n.tokens = x.dim(0);
  n.width = x.dim(1);
  n.x = x.data;
  n.x_stride = x.stride(0);
  n.weight = weight.data;
  n.weight_bf16 = weight.dtype == DType::bf16;
  n.eps = eps;
  n.out = out.data;
  n.out_stride = out.stride(0);
  n.dependent = true;
  if (n.tokens > 0) ctx.gpu->note(rms_norm_cuda(n, ctx.stream), "rms_norm");
}

void add(const Ctx& ctx, const Tensor& x, const Tensor& y) noexcept {
  ctx.gpu->note(add_cuda(into(x, y, "add"), ctx.stream), "add");
}

void copy(const Ctx& ctx, const Tensor& from, const Tensor& to) noexcept {
  ctx.gpu->note(convert_cuda({.rows = from.dim(0),
                              .width = from.dim(1),
                              .x = from.data,
                              .x_stride = from.stride(0),
                              .x_f32 = from.dtype == DType::f32,
                              .out = to.data,
                              .out_stride = to.stride(0),
                              .out_f32 = to.dtype == DType::f32,
                              .dependent = true},
                             ctx.stream),
                "copy");
}

void gather_rows(const Ctx& ctx, const Tensor& from, std::span<const int64_t>, const Tensor& to) noexcept {
  check_rows(from, "gather_rows");
  ctx.gpu->note(gather_rows_cuda({.rows = to.dim(0),
                                  .width = to.dim(1),
                                  .x = from.data,
                                  .x_stride = from.stride(0),
                                  .x_rows = from.dim(0),
                                  .index = ctx.step->logit_rows,
                                  .out = to.data,
                                  .out_stride = to.stride(0),
                                  .dependent = true},
                                 ctx.stream),
                "gather_rows");
}

void sigmoid_gate(const Ctx& ctx, const Tensor& gate, const Tensor& y) noexcept {
  ctx.gpu->note(sigmoid_gate_cuda(into(gate, y, "sigmoid_gate"), ctx.stream), "sigmoid_gate");
}

void glu(const Ctx& ctx, const Tensor& gate, const Tensor& up, const ops::Glu& activation, const Tensor& out) noexcept {
  check_rows(gate, "glu");
  ctx.gpu->note(glu_cuda({.rows = out.dim(0),
                          .width = out.dim(1),
                          .gate = gate.data,
                          .gate_stride = gate.stride(0),
                          .up = up.data,
                          .up_stride = up.stride(0),
                          .out = out.data,
                          .out_stride = out.stride(0),
                          .situ = activation.kind == GluKind::situ,
                          .beta = activation.beta,
                          .linear_beta = activation.linear_beta.value_or(0),
                          .dependent = true},
                         ctx.stream),
                "glu");
}

}  // namespace k3::ops::cuda
