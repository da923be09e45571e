// MLA on a GPU: absorbed over the pages for steps of few tokens a sequence, expanded keys and values for longer ones. Sizes that these do
// not know take one plain kernel.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/gemm/cuda/gemm_cuda.h"
#include "k3/ops/mla/cuda/mla_any_dims.h"
#include "k3/ops/mla/cuda/mla_config.h"
#include "k3/ops/mla/cuda/mla_cuda.h"
#include "k3/ops/mla/cuda/mla_parts.h"
#include "k3/ops/mla/mla.h"

namespace k3::ops::cuda {
namespace {

constexpr int64_t kAbsorbedTokens = 8;  // most query tokens of a sequence in the absorbed kernel
constexpr int64_t kLatent = 512, kWidth = 576, kValue = 128;

LatentPages pages_of(const PagedTable& table) {
  K3_CHECK(table.dtype == DType::bf16, "latents of dtype {} on a GPU", dtype_name(table.dtype));
  return {.base = table.base,
          .page_stride = table.page_stride,
          .row_stride = table.row_stride,
          .pages = table.pages,
          .page_tokens = table.page_tokens,
          .table = table.tables,
          .table_stride = table.table_stride};
}

LatentAppend append_of(const Tensor& kv, const Tensor& norm_weight, float eps) {
  LatentAppend a;
  a.kv = kv.data;
  a.kv_stride = kv.stride(0);
  a.norm_weight = norm_weight.data;
  a.norm_f32 = norm_weight.dtype == DType::f32;
  a.eps = eps;
  return a;
}

void absorbed(const Ctx& ctx, const ops::MlaArgs& args) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = args.q.dim(0), heads = args.q.dim(1);
  const Tensor query = ctx.workspace->tensor({tokens, heads, kWidth}, DType::bf16);
  const Tensor ol = ctx.workspace->tensor({tokens, heads, kLatent}, DType::bf16);
  MlaAbsorb a;
  a.q = args.q.data;
  a.q_stride = args.q.stride(0);
  a.kv_b = args.kv_b.data;
  a.query = query.data;
  a.tokens = tokens;
  a.heads = heads;
  ctx.gpu->note(mla_absorb_cuda(a, ctx.stream), "mla absorb");
  MlaDecode d;
  d.query = query.data;
  d.lengths = ctx.step->lengths;
  d.offsets = ctx.step->offsets;
  d.batch = ctx.step->sequences;
  d.heads = heads;
  d.max_query_tokens = ctx.step->longest;
  d.query_tokens = tokens;
  d.pages = pages_of(args.table);
  d.ol = ol.data;
  d.workspace = ctx.workspace->bytes(mla_decode_workspace_bytes(mla_decode_config(heads, d.max_query_tokens, device_info())));
  ctx.gpu->note(mla_decode_cuda(d, ctx.stream), "mla decode");
  MlaValues v;
  v.ol = ol.data;
  v.kv_b = args.kv_b.data;
  if (args.gate) {
    v.gate = args.gate.data;
    v.gate_stride = args.gate.stride(0);
  }
  v.out = args.out.data;
  v.out_stride = args.out.stride(0);
  v.out_rest = args.out_rest.data;
  v.tokens = tokens;
  v.heads = heads;
  ctx.gpu->note(mla_values_cuda(v, ctx.stream), "mla values");
}

// Keys and values of the cached tokens [first, first + rows.dim(0)) of all sequences.
void expand(const Ctx& ctx, const ops::MlaArgs& args, int64_t first, const Tensor& rows, const Tensor& both) {
  LatentGather g;
  g.out = rows.data;
  g.out_stride = kWidth;
  g.tokens = rows.dim(0);
  g.first = first;
  g.batch = ctx.step->sequences;
  g.offsets = ctx.step->key_offsets;
  g.pages = pages_of(args.table);
  ctx.gpu->note(latent_gather_cuda(g, ctx.stream), "mla gather");
  GemmArgs e;
  e.x = rows.data;
  e.tokens = rows.dim(0);
  e.in = kLatent;
  e.x_stride = kWidth;
  e.dependent = true;
  e.part_count = 1;
  e.parts[0] = {.w = args.kv_b, .y = both.data, .y_stride = both.stride(0)};
  ctx.gpu->note(gemm_cuda(e, ctx.gpu->plans(), ctx.stream), "mla expand");
}

void expanded(const Ctx& ctx, const ops::MlaArgs& args) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = args.q.dim(0), heads = args.q.dim(1), keys = ctx.step->keys, part = mla_part_of(keys, heads);
  const Tensor rows = ctx.workspace->tensor({part, kWidth}, DType::bf16);
  const Tensor both = ctx.workspace->tensor({part, heads * 2 * kValue}, DType::bf16);
  MlaPrefill p;
  p.q = args.q.data;
  p.q_stride = args.q.stride(0);
  p.expanded = both.data;
  p.expanded_stride = both.stride(0);
  p.shared_keys = rows.columns(kLatent, kWidth).data;
  p.shared_stride = kWidth;
  p.query_offsets = ctx.step->offsets;
  p.key_offsets = ctx.step->key_offsets;
  p.batch = ctx.step->sequences;
  p.heads = heads;
  p.tokens = tokens;
  p.out = args.out.data;
  p.out_stride = args.out.stride(0);
  if (part < keys) {
    p.so_far = ctx.workspace->tensor({tokens, heads, kValue}).f32();
    p.lse = ctx.workspace->tensor({tokens, heads}).f32();
  }
  for (p.first_key = 0; p.first_key < keys; p.first_key += part) {
    p.keys = std::min(part, keys - p.first_key);
    expand(ctx, args, p.first_key, rows.slice(0, p.keys), both.slice(0, p.keys));
    ctx.gpu->note(mla_prefill_cuda(p, ctx.stream), "mla prefill");
  }
}

void plain(const Ctx& ctx, const ops::MlaArgs& args) {
  MlaAny a;
  a.dims = {static_cast<int>(args.q.dim(1)), static_cast<int>(args.nope), static_cast<int>(args.rope), static_cast<int>(args.value),
            static_cast<int>(args.rank)};
  a.q = args.q.data;
  a.q_stride = args.q.stride(0);
  a.kv_b = args.kv_b.data;
  a.lengths = ctx.step->lengths;
  a.offsets = ctx.step->offsets;
  a.batch = ctx.step->sequences;
  a.tokens = args.q.dim(0);
  a.pages = pages_of(args.table);
  a.out = args.out.data;
  a.out_stride = args.out.stride(0);
  ctx.gpu->note(mla_any_dims_cuda(a, ctx.stream), "mla of any size");
}

// Append, absorb, decode and values in one launch.
void fused(const Ctx& ctx, const ops::MlaArgs& args, const MlaFusedConfig& config) {
  const Workspace::Scope scope(*ctx.workspace);
  MlaFused f;
  f.append = append_of(args.kv, args.kv_norm, args.kv_eps);
  f.q = args.q.data;
  f.q_stride = args.q.stride(0);
  f.kv_b = args.kv_b.data;
  f.lengths = ctx.step->lengths;
  f.offsets = ctx.step->offsets;
  f.tokens = args.q.dim(0);
  f.heads = args.q.dim(1);
  f.pages = pages_of(args.table);
  if (args.gate) {
    f.gate = args.gate.data;
    f.gate_stride = args.gate.stride(0);
  }
  f.out = args.out.data;
  f.out_stride = args.out.stride(0);
  f.out_rest = args.out_rest.data;
  f.workspace = ctx.workspace->bytes(mla_fused_workspace_bytes(config));
  const Result<void*> counters = ctx.gpu->zeroed(kFusedCounters * static_cast<int64_t>(sizeof(int32_t)));
  if (!counters.ok()) end_exhausted(counters.error().message);
  f.counters = static_cast<int32_t*>(*counters);
  ctx.gpu->note(mla_fused_cuda(f, ctx.stream), "mla fused");
}

}  // namespace

void latent_append(const Ctx& ctx, const Tensor& kv, const Tensor& norm_weight, float eps, const PagedTable& table) noexcept {
  K3_CHECK(kv.dtype == DType::bf16 && kv.dim(1) == table.width, "latent_append on a GPU: {} {}", dtype_name(kv.dtype), kv.shape_text());
  if (kv.dim(0) == 0) return;
  LatentAppend a = append_of(kv, norm_weight, eps);
  a.tokens = kv.dim(0);
  a.batch = ctx.step->sequences;
  a.offsets = ctx.step->offsets;
  a.history = ctx.step->history;
  a.pages = pages_of(table);
  const int64_t rank = norm_weight.size();
  const CudaStatus status = rank == kLatent && kv.dim(1) == kWidth
                                ? latent_append_cuda(a, ctx.stream)
                                : latent_append_any_cuda({a, static_cast<int>(rank), static_cast<int>(kv.dim(1) - rank)}, ctx.stream);
  ctx.gpu->note(status, "latent_append");
}

void mla(const Ctx& ctx, const ops::MlaArgs& args) noexcept {
  K3_CHECK(args.q.dtype == DType::bf16 && args.kv_b.scheme == Scheme::bf16, "mla on a GPU: q {} {}", dtype_name(args.q.dtype),
           args.q.shape_text());
  if (args.q.dim(0) == 0) return;
  K3_CHECK(!args.out_rest || (args.out_rest.contiguous() && args.out_rest.stride(0) == args.out.stride(0)), "mla on a GPU: out {}, its rest {}",
           args.out.shape_text(), args.out_rest.shape_text());
  const bool known = args.nope == 128 && args.rope == 64 && args.value == kValue && args.rank == kLatent;
  const MlaFusedConfig config = mla_fused_config(args.q.dim(1), args.q.dim(0), ctx.step->sequences, device_info());
  if (known && args.kv && config.usable) return fused(ctx, args, config);
  if (args.kv) latent_append(ctx, args.kv, args.kv_norm, args.kv_eps, args.table);
  if (known && (ctx.deterministic || ctx.step->longest <= kAbsorbedTokens)) return absorbed(ctx, args);  // with the gate
  if (args.out_rest) ctx.gpu->note({cudaMemsetAsync(args.out_rest.data, 0, static_cast<size_t>(2 * args.out_rest.size()), ctx.stream)}, "mla rest");
  known ? expanded(ctx, args) : plain(ctx, args);
  if (args.gate) cuda::sigmoid_gate(ctx, args.gate, args.out.reshape({args.gate.dim(0), args.gate.dim(1)}));
}

}  // namespace k3::ops::cuda
