// A site of AttnRes in training on a GPU: one kernel forward, one back. The mix is computed again in the backward.
#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/cuda/train_dispatch.h"
#include "k3/ops/cuda/train_rows.h"
#include "k3/ops/tape.h"

namespace k3::ops::cuda {
namespace {

int32_t blocks_of(const ops::AttnResSite& site) { return site.blocks ? static_cast<int32_t>(site.blocks.dim(0)) : 0; }

SiteTrain sources_of(const ops::AttnResSite& site, const Tensor& prefix) {
  SiteTrain a{};
  a.tokens = prefix.dim(0);
  a.width = prefix.dim(1);
  const int32_t blocks = blocks_of(site);
  a.sources = blocks + 1;
  for (int32_t j = 0; j < blocks; ++j) a.rows[j] = site.blocks.at(j).data;
  a.rows[blocks] = prefix.data;
  a.query = blocks > 0 ? site.query.f32() : nullptr;
  a.norm = site.norm.f32();
  a.eps = site.eps;
  return a;
}

void site_vjp(const Ctx& ctx, Tape& tape, const ops::AttnResSite& site, const Tensor& kept, const Tensor& dout) {
  const Workspace::Scope scope(*ctx.workspace);
  SiteTrain a = sources_of(site, kept);
  a.dout = dout.data;
  for (int32_t j = 0; j < a.sources; ++j) {
    const Tape::Into into = tape.into(j + 1 < a.sources ? site.blocks.at(j) : site.prefix);
    a.grads[j] = into.grad.data;
    a.fresh[j] = into.fresh;
  }
  if (site.bank_to) {
    if (const Tensor banked = tape.grad(site.bank_to)) a.banked = banked.data;
  }
  if (site.delta) {
    const Tape::Into delta = tape.into(site.delta);
    a.ddelta = delta.grad.data;
    a.ddelta_fresh = delta.fresh;
  }
  const Tensor dnorm = tape.parameter_grad(site.norm.data, site.norm.size());
  const auto partial = [&] { return ctx.workspace->tensor({kPartialRows, a.width}).f32(); };
  if (dnorm) a.norm_partial = partial();
  Tape::Into dquery;
  if (a.sources > 1) {
    dquery = tape.into(site.query);
    a.query_partial = partial();
    if (dquery.fresh) ctx.gpu->note(fill_async(dquery.grad.data, 0, a.width * 4, ctx.stream));
  }
  ctx.gpu->note(CudaStatus{site_vjp_launch(a, ctx.stream)}, "site vjp");
  const auto sum = [&](const float* rows, const Tensor& to) {
    ctx.gpu->note(CudaStatus{sum_rows_launch(rows, kPartialRows, a.width, to.f32(), ctx.stream)}, "sum of rows");
  };
  if (dnorm) sum(a.norm_partial, dnorm);
  if (a.sources > 1) sum(a.query_partial, dquery.grad);
}

}  // namespace

void attn_res_site_train(const Ctx& ctx, const ops::AttnResSite& site) noexcept {
  SiteTrain a = sources_of(site, site.prefix);
  Tape* const tape = ctx.tape;
  Tensor kept = site.bank_to;
  if (!kept && tape != nullptr) kept = ctx.workspace->tensor_like(site.prefix);
  if (site.delta) a.delta = site.delta.data;
  a.prefix = site.prefix.data;
  a.kept = kept.data;
  a.out = site.out.data;
  ctx.gpu->note(CudaStatus{site_train_launch(a, ctx.stream)}, "site");
  if (tape == nullptr) return;
  tape->record([=](const Ctx& back) {
    if (const Tensor dout = tape->grad(site.out)) {
      site_vjp(back, *tape, site, kept, dout);
      tape->done(site.out);
      if (site.bank_to) tape->done(site.bank_to);
      return;
    }
    if (site.bank_to) {
      if (const Tensor banked = tape->grad(site.bank_to)) tape->add(back, site.prefix, banked);
      tape->done(site.bank_to);
    }
    if (!site.delta) return;
    if (const Tensor dprefix = tape->grad(site.prefix)) tape->add(back, site.delta, dprefix);
  });
}

}  // namespace k3::ops::cuda
