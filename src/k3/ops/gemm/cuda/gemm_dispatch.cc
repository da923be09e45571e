#include "k3/ops/attn_res/attn_res.h"
#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/gemm/cuda/gemm_cuda.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/gemm/linear_steps.h"

namespace k3::ops::cuda {
namespace {

GemmArgs args_of(const Ctx& ctx, const Tensor& x) {
  K3_CHECK(x.rank == 2 && x.dtype == DType::bf16, "linear: x {} of dtype {} on a GPU", x.shape_text(), dtype_name(x.dtype));
  GemmArgs args;
  args.x = x.data;
  args.tokens = x.dim(0);
  args.in = x.dim(1);
  args.x_stride = x.stride(0);
  args.deterministic = ctx.deterministic;
  args.dependent = true;
  return args;
}

GemmPart part_of(const Tensor& x, const Weight& w, const Tensor& y) {
  K3_CHECK(w.cols == x.dim(1) && y.dim(1) == w.rows && y.dim(0) == x.dim(0), "linear: weight {} x {}, x {}, y {}", w.rows, w.cols,
           x.shape_text(), y.shape_text());
  return {.w = w, .y = y.data, .y_stride = y.stride(0), .y_dtype = y.dtype};
}

// A residual sum and a norm; the first launch of a step and what follows the start of a block read what the kernel before wrote.
bool site_fuses(const ops::AttnResSite& site) {
  return site.delta && site.norm && !site.bank_to && (!site.blocks || site.blocks.dim(0) == 0);
}

// Deterministic products have one form whatever the number of tokens; other GPUs than Hopper have no stream kernel.
bool fuses(const Ctx& ctx, const Tensor& x, const Weight& w) {
  return !ctx.deterministic && !plain_device() && gemm_fuses(x.dim(0), x.dim(1), w.scheme) && x.stride(0) % 8 == 0 && w.rows % 2 == 0;
}

}  // namespace

namespace {

// What rounding cut off x, times the weights of products of full precision, to what they have.
void add_rest(const Ctx& ctx, const Tensor& rest, std::span<const ops::LinearPart> parts) {
  for (const ops::LinearPart& part : parts) {
    if (!part.full_precision) continue;
    GemmArgs args = args_of(ctx, rest);
    args.part_count = 1;
    args.parts[0] = part_of(rest, part.w, part.y);
    args.parts[0].accumulate = true;
    ctx.gpu->note(gemm_cuda(args, ctx.gpu->plans(), ctx.stream), "linear of what rounding cut off");
  }
}

// rest: what rounding cut off x, or none; site: what makes both first, or none.
void many(const Ctx& ctx, const Tensor& x, const Tensor& rest, std::span<const ops::LinearPart> parts, const ops::AttnResSite* site) {
  GemmArgs args = args_of(ctx, x);
  if (x.dim(0) == 0) return;
  const bool fused = std::all_of(parts.begin(), parts.end(), [&](const ops::LinearPart& p) { return fuses(ctx, x, p.w); });
  if (needs_more(parts) && !fused) {
    if (site != nullptr) cuda::attn_res_site(ctx, *site);
    linear_in_steps(ctx, x, parts, [&](std::span<const ops::LinearPart> plain) { cuda::linear_many(ctx, x, plain); });
    if (rest) add_rest(ctx, rest, parts);
    return;
  }
  // A sub-layer ends with a product of one weight. The site after it reads, before it waits, what the site before wrote; all
  // kernels between may start early, but this one lets the site start only when it has waited itself.
  args.release_late = parts.size() == 1;
  for (const ops::LinearPart& part : parts) {
    GemmPart& to = args.parts[static_cast<size_t>(args.part_count++)];
    to = part_of(x, part.w, part.y);
    to.accumulate = part.accumulate;
    to.up = part.up;
    if (part.up) args.glu = *part.glu;
  }
  args.x_rest = rest.data;
  args.split = rest && gemm_takes_split(args);
  if (site != nullptr && site_fuses(*site) && gemm_takes_site(args) && ctx.gpu->site_counter() != nullptr) {
    args.site = {.prefix = site->prefix.data,
                 .delta = site->delta.data,
                 .prefix_out = site->prefix.data,
                 .rest = site->exact ? nullptr : site->rest.data,
                 .rest_out = site->rest.data,
                 .norm = site->norm.data,
                 .norm_bf16 = site->norm.dtype == DType::bf16,
                 .eps = site->eps,
                 .out = site->out.data,
                 .counter = ctx.gpu->site_counter()};
    args.x_rest = nullptr;  // made and met inside
  } else if (site != nullptr) {
    cuda::attn_res_site(ctx, *site);
  }
  args.claims = ctx.gpu->claim_counter();
  ctx.gpu->note(gemm_cuda(args, ctx.gpu->plans(), ctx.stream), "linear");
  if (rest && !args.split) add_rest(ctx, rest, parts);
}

}  // namespace

void linear_many(const Ctx& ctx, const Tensor& x, std::span<const ops::LinearPart> parts, const Tensor& x_rest) noexcept {
  many(ctx, x, x_rest, parts, nullptr);
}
void linear_many(const Ctx& ctx, const ops::AttnResSite& site, std::span<const ops::LinearPart> parts) noexcept {
  many(ctx, site.out, site.prefix ? site.out_rest : Tensor(), parts, site.prefix ? &site : nullptr);
}

void linear_two(const Ctx& ctx, const ops::LinearOne& a, const ops::LinearOne& b) noexcept {
  const bool alike = a.w.rows == b.w.rows && a.w.cols == b.w.cols && a.x.stride(0) == b.x.stride(0) && a.x.dim(0) == b.x.dim(0) &&
                     a.w.scheme == b.w.scheme;
  if (!alike || !fuses(ctx, a.x, a.w)) {
    for (const ops::LinearOne* one : {&a, &b}) {
      const ops::LinearPart part{one->w, one->y};
      cuda::linear_many(ctx, one->x, {&part, 1});
    }
    return;
  }
  if (a.x.dim(0) == 0) return;
  GemmArgs args = args_of(ctx, a.x);
  args.other_x = b.x.data;
  args.part_count = 2;
  args.parts[0] = part_of(a.x, a.w, a.y);
  args.parts[1] = part_of(b.x, b.w, b.y);
  ctx.gpu->note(gemm_cuda(args, ctx.gpu->plans(), ctx.stream), "linear");
}

}  // namespace k3::ops::cuda
