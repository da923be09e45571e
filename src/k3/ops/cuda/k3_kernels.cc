#include "k3/ops/cuda/k3_kernels.h"

#include "k3/base/check.h"
#include "k3/ops/attn_res/cuda/attn_res_cuda.h"
#include "k3/ops/gemm/cuda/gemm_cuda.h"
#include "k3/ops/kda/cuda/kda_decode_cuda.h"
#include "k3/ops/kda/cuda/kda_verify_cuda.h"
#include "k3/ops/mla/cuda/mla_config.h"
#include "k3/ops/mla/cuda/mla_cuda.h"
#include "k3/ops/moe/cuda/moe_grouped_cuda.h"
#include "k3/ops/moe/cuda/moe_stream_cuda.h"
#include "k3/ops/moe/cuda/moe_stream_pack.h"
#include "k3/ops/router/cuda/router_cuda.h"
#include "k3/ops/short_conv/cuda/short_conv_cuda.h"

namespace {

using namespace k3::ops::cuda;

constexpr int64_t kStreamTokens = 256;

MoeWeights kind_of(int32_t mxfp4) { return mxfp4 != 0 ? MoeWeights::mxfp4 : MoeWeights::bf16; }

MoeExpertsCuda experts_of(const K3Experts& e) {
  return {kind_of(e.mxfp4), e.experts, e.width, e.intermediate, e.w13, e.w2, e.mxfp4 != 0 ? e.factors : nullptr};
}

// Where the parts of a workspace of k3_moe begin: results of slots, then what the kernels want.
struct MoeParts {
  bool grouped = false;
  int64_t slots = 0, rest = 0, total = 0;
};
MoeParts parts_of(const K3Moe& a) {
  MoeParts p;
  p.grouped = a.tokens > kStreamTokens;
  const int64_t element = p.grouped ? 2 : 4;
  p.rest = (int64_t{a.tokens} * a.topk * a.weights.width * element + 255) / 256 * 256;
  p.total = p.rest + (p.grouped ? moe_grouped_workspace_bytes(a.tokens, a.topk, a.weights.experts, a.weights.width, a.weights.intermediate)
                                : moe_stream_workspace_bytes(a.tokens, a.topk, a.weights.experts, a.weights.intermediate));
  return p;
}

}  // namespace

extern "C" {

int k3_kernels_version(void) { return K3_KERNELS_VERSION; }

int k3_kda_decode(const KdaDecodeArgs* args, CUstream_st* stream) { return kda_decode_cuda(*args, stream).code; }
int k3_kda_verify(const KdaVerifyArgs* args, CUstream_st* stream) { return kda_verify_cuda(*args, stream).code; }
int k3_kda_commit(const KdaCommitArgs* args, CUstream_st* stream) { return kda_commit_cuda(*args, stream).code; }
int k3_short_conv(const ShortConvArgs* args, CUstream_st* stream) { return short_conv_cuda(*args, stream).code; }

int64_t k3_mla_decode_workspace(int64_t heads, int64_t query_tokens_each) {
  return mla_decode_workspace_bytes(mla_decode_config(heads, query_tokens_each, device_info()));
}

int k3_mla_decode(const K3MlaDecode* a, CUstream_st* stream) {
  MlaDecode d;
  d.query = a->query;
  d.lengths = a->lengths;
  d.offsets = a->offsets;
  d.batch = a->batch;
  d.heads = a->heads;
  d.max_query_tokens = a->query_tokens_each;
  d.query_tokens = a->tokens;
  d.pages = {.base = a->pages,
             .page_stride = a->page_stride,
             .row_stride = a->row_stride,
             .pages = a->page_count,
             .page_tokens = a->page_tokens,
             .table = a->table,
             .table_stride = a->table_stride};
  d.ol = a->out;
  d.lse = a->lse;
  d.workspace = a->workspace;
  return mla_decode_cuda(d, stream).code;
}

int k3_attn_res(const K3AttnRes* a, CUstream_st* stream) {
  AttnResSite s;
  s.tokens = a->tokens;
  s.hidden = a->hidden;
  s.blocks = static_cast<int>(a->blocks);
  s.bank = a->bank;
  s.bank_block_stride = a->tokens * a->hidden;
  s.bank_stride = s.prefix_stride = s.delta_stride = s.prefix_out_stride = s.out_stride = a->hidden;
  s.prefix = a->prefix;
  s.delta = a->delta;
  s.prefix_out = a->prefix_out;
  s.query = a->query;
  s.norm = a->norm;
  s.eps = s.norm_eps = a->eps;
  s.out = a->out;
  return attn_res_cuda(s, stream).code;
}

int k3_router(const K3Router* a, CUstream_st* stream) {
  RouterCuda r;
  r.logits = a->logits;
  r.bias = a->bias;
  r.tokens = a->tokens;
  r.experts = a->experts;
  r.topk = a->topk;
  r.renormalise = a->renormalise != 0;
  r.scale = a->scale;
  r.ids = a->ids;
  r.weights = a->weights;
  return router_cuda(r, stream).code;
}

int64_t k3_experts_packed_bytes(int32_t mxfp4, int64_t rows, int64_t columns) { return moe_packed_bytes(kind_of(mxfp4), rows, columns); }

int k3_experts_pack(const K3Experts* e, int32_t index, const void* w1, const void* w2, const void* w3, const uint8_t* s1, const uint8_t* s2,
                    const uint8_t* s3, CUstream_st* stream) {
  K3_CHECK(index >= 0 && index < e->experts, "expert {} of {}", index, e->experts);
  MoePack p;
  p.kind = kind_of(e->mxfp4);
  p.width = e->width;
  p.hidden = e->intermediate;
  p.w1 = w1;
  p.w2 = w2;
  p.w3 = w3;
  p.s1 = s1;
  p.s2 = s2;
  p.s3 = s3;
  p.w13_packed = static_cast<std::byte*>(e->w13) + index * moe_packed_bytes(p.kind, int64_t{2} * p.hidden, p.width);
  p.w2_packed = static_cast<std::byte*>(e->w2) + index * moe_packed_bytes(p.kind, p.width, p.hidden);
  p.factors = e->factors == nullptr ? nullptr : e->factors + int64_t{4} * index;
  return moe_pack_cuda(p, stream).code;
}

int64_t k3_moe_workspace(const K3Moe* args) { return parts_of(*args).total; }

int k3_moe(const K3Moe* a, CUstream_st* stream) {
  const MoeParts parts = parts_of(*a);
  auto* workspace = static_cast<std::byte*>(a->workspace);
  const MoeGlu glu{a->situ != 0, a->beta, a->linear_beta};
  if (parts.grouped) {
    MoeGroupedCuda g;
    g.weights = experts_of(a->weights);
    g.glu = glu;
    g.z = a->z;
    g.z_stride = a->weights.width;
    g.ids = a->ids;
    g.tokens = a->tokens;
    g.topk = a->topk;
    g.first_expert = a->first_expert;
    g.rows = workspace;
    g.workspace = workspace + parts.rest;
    const CudaStatus status = moe_grouped_cuda(g, stream);
    return status.ok() ? moe_grouped_combine_cuda(g, {.weights = a->gates, .out = a->out}, stream).code : status.code;
  }
  MoeStreamCuda s;
  s.weights = experts_of(a->weights);
  s.glu = glu;
  s.z = a->z;
  s.ids = a->ids;
  s.tokens = a->tokens;
  s.topk = a->topk;
  s.first_expert = a->first_expert;
  s.slot_out = reinterpret_cast<float*>(workspace);
  s.workspace = workspace + parts.rest;
  s.sum.weights = a->gates;
  s.sum.out = a->out;
  return moe_stream_cuda(s, stream).code;
}

int k3_linear(const void* x, int64_t tokens, int64_t columns, const void* w, int64_t rows, void* y, CUstream_st* stream) {
  GemmArgs g;
  g.x = x;
  g.tokens = tokens;
  g.in = columns;
  g.x_stride = columns;
  g.part_count = 1;
  g.parts[0].w = {.data = w, .scheme = k3::ops::Scheme::bf16, .rows = rows, .cols = columns};
  g.parts[0].y = y;
  g.parts[0].y_stride = rows;
  return gemm_cuda(g, nullptr, stream).code;
}

}  // extern "C"
