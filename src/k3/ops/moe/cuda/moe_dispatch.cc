#include <algorithm>
#include <cmath>

#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/moe/cuda/moe_fetch_cuda.h"
#include "k3/ops/moe/cuda/moe_grouped_cuda.h"
#include "k3/ops/moe/cuda/moe_stream_cuda.h"
#include "k3/ops/moe/cuda/moe_stream_pack.h"
#include "k3/ops/moe/expert_store.h"
#include "k3/ops/moe/moe.h"
#include "k3/ops/router/cuda/router_cuda.h"
#include "k3/ops/router/router.h"

namespace k3::ops::cuda {

void router(const Ctx& ctx, const Tensor& logits, const Tensor& bias, const ops::RouterOptions& options, const Tensor& ids,
            const Tensor& weights) noexcept {
  RouterCuda r;
  r.logits = logits.f32();
  r.bias = bias ? bias.f32() : nullptr;
  r.tokens = static_cast<int>(logits.dim(0));
  r.experts = static_cast<int>(logits.dim(1));
  r.topk = static_cast<int>(options.topk);
  r.renormalise = options.renormalise;
  r.scale = options.scale;
  r.ids = static_cast<int32_t*>(ids.data);
  r.weights = weights.f32();
  ctx.gpu->note(router_cuda(r, ctx.stream), "router");
}

namespace {

MoeWeights kind_of(const ops::ExpertBank& bank) { return bank.scheme == Scheme::mxfp4 ? MoeWeights::mxfp4 : MoeWeights::bf16; }

int64_t gate_up_bytes(const ops::ExpertBank& bank) { return moe_packed_bytes(kind_of(bank), 2 * bank.hidden, bank.width); }
int64_t down_bytes(const ops::ExpertBank& bank) { return moe_packed_bytes(kind_of(bank), bank.width, bank.hidden); }

constexpr int64_t kStreamTokens = 256;  // most of the streaming kernels; beyond, weights are read once for tiles of tokens
constexpr float kKeepScore = 0.998F;    // half after 350 tokens

MoePlaces places_of(const ops::ExpertBank& bank) {
  if (bank.store == nullptr) return {};
  const ops::ExpertStore::Layer at = bank.store->layer(bank.store_layer);
  return {.slot = at.slot,
          .slots = reinterpret_cast<const uint8_t*>(at.slots),
          .host = reinterpret_cast<const uint8_t*>(at.host),
          .expert_bytes = bank.store->shape().expert_bytes};
}

MoeExpertsCuda experts_of(const ops::ExpertBank& bank) {
  return {.kind = kind_of(bank),
          .experts = static_cast<int>(bank.experts),
          .width = static_cast<int>(bank.width),
          .hidden = static_cast<int>(bank.hidden),
          .w13 = bank.gate_up,
          .w2 = bank.down,
          .factors = bank.scheme == Scheme::mxfp4 ? bank.factors : nullptr,
          .places = places_of(bank)};
}

// Counts the experts of these tokens and, unless they come in parts, gives slots to those that are used most.
void fetch(const Ctx& ctx, const Tensor& ids, const ops::ExpertBank& bank, bool admit) {
  const ops::ExpertStore::Layer at = bank.store->layer(bank.store_layer);
  MoeFetch f;
  f.ids = static_cast<const int32_t*>(ids.data);
  f.tokens = static_cast<int>(ids.dim(0));
  f.topk = static_cast<int>(ids.dim(1));
  f.first_expert = bank.first;
  f.experts = static_cast<int>(bank.experts);
  f.admit = admit;
  f.places = places_of(bank);
  f.first_slot = static_cast<int>(at.first_slot);
  f.slots = static_cast<int>(at.slot_count);
  f.slot = at.slot;
  f.owner = at.owner;
  f.score = at.score;
  f.keep = std::pow(kKeepScore, static_cast<float>(f.tokens));
  f.counts = static_cast<MoeFetchCounts*>(admit ? at.counts : at.staged_counts);
  f.list = at.list;
  ctx.gpu->note(moe_fetch_cuda(f, ctx.stream), "moe fetch");
}

// Products of experts that come to the GPU in parts, each while the one before is computed.
Status staged_products(const Ctx& ctx, const MoeGroupedCuda& g, const ops::ExpertBank& bank) {
  ops::ExpertStore& store = *bank.store;
  for (int64_t begin = 0; begin < bank.experts;) {
    K3_TRY_ASSIGN(const ops::ExpertStore::Part part, store.stage(bank.store_layer, begin, ctx.stream));
    const MoeGroupedPart experts{static_cast<int>(part.begin), static_cast<int>(part.end), static_cast<int>(part.first_slot)};
    ctx.gpu->note(moe_grouped_part_cuda(g, experts, ctx.stream), "moe part");
    K3_TRY(store.staged_done(ctx.stream));
    begin = part.end;
  }
  return {};
}

MoeGlu glu_of(const ops::Glu& activation) {
  return {activation.kind == GluKind::situ, activation.beta, activation.linear_beta.value_or(0)};
}

void stream(const Ctx& ctx, const Tensor& z, const Tensor& ids, const Tensor& weights, const ops::ExpertBank& bank,
            const ops::Glu& activation, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = z.dim(0), topk = ids.dim(1);
  MoeStreamCuda s;
  s.weights = experts_of(bank);
  s.glu = glu_of(activation);
  s.z = z.data;
  s.ids = static_cast<const int32_t*>(ids.data);
  s.tokens = static_cast<int>(tokens);
  s.topk = static_cast<int>(topk);
  s.first_expert = bank.first;
  s.slot_out = ctx.workspace->tensor({tokens * topk, bank.width}).f32();
  s.sum.weights = weights.f32();
  s.sum.out = out.data;
  const Result<void*> counters = ctx.gpu->zeroed(moe_stream_workspace_bytes(kStreamTokens, topk, bank.experts, bank.hidden));
  if (!counters.ok()) end_exhausted(counters.error().message);
  s.workspace = *counters;
  if (bank.store != nullptr) fetch(ctx, ids, bank, true);
  ctx.gpu->note(moe_stream_cuda(s, ctx.stream), "moe");
}

void grouped(const Ctx& ctx, const Tensor& z, const Tensor& ids, const Tensor& weights, const ops::ExpertBank& bank,
             const ops::Glu& activation, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = z.dim(0), topk = ids.dim(1);
  MoeGroupedCuda g;
  g.weights = experts_of(bank);
  g.glu = glu_of(activation);
  g.z = z.data;
  g.z_stride = z.stride(0);
  g.ids = static_cast<const int32_t*>(ids.data);
  g.tokens = static_cast<int>(tokens);
  g.topk = static_cast<int>(topk);
  g.first_expert = bank.first;
  g.rows = ctx.workspace->tensor({tokens * topk, bank.width}, DType::bf16).data;
  g.workspace = ctx.workspace->bytes(moe_grouped_workspace_bytes(tokens, topk, bank.experts, bank.width, bank.hidden));
  if (bank.store == nullptr) {
    ctx.gpu->note(moe_grouped_cuda(g, ctx.stream), "moe");
  } else {
    fetch(ctx, ids, bank, false);
    ctx.gpu->note(moe_grouped_prepare_cuda(g, ctx.stream), "moe rows");
    ctx.gpu->note(staged_products(ctx, g, bank));
  }
  ctx.gpu->note(moe_grouped_combine_cuda(g, {.weights = weights.f32(), .out = out.data}, ctx.stream), "moe sum");
}

}  // namespace

ExpertBankBytes expert_bank_bytes(const ops::ExpertBank& bank) {
  return {bank.experts * gate_up_bytes(bank), bank.experts * down_bytes(bank), bank.experts * 16};
}

Status pack_expert(const ops::ExpertBank& bank, int64_t index, const Weight& w1, const Weight& w2, const Weight& w3, Stream stream) {
  const auto at = [](const void* base, int64_t bytes) { return const_cast<std::byte*>(static_cast<const std::byte*>(base)) + bytes; };
  MoePack p;
  p.kind = kind_of(bank);
  p.width = static_cast<int>(bank.width);
  p.hidden = static_cast<int>(bank.hidden);
  p.w1 = w1.data;
  p.w2 = w2.data;
  p.w3 = w3.data;
  p.s1 = w1.scales;
  p.s2 = w2.scales;
  p.s3 = w3.scales;
  p.w13_packed = at(bank.gate_up, index * gate_up_bytes(bank));
  p.w2_packed = at(bank.down, index * down_bytes(bank));
  p.factors = reinterpret_cast<float*>(at(bank.factors, index * 16));
  return to_status(moe_pack_cuda(p, stream), "packing an expert");
}

bool moe_in_parts(const ops::ExpertBank& bank, int64_t tokens) noexcept {
  return tokens > kStreamTokens && moe_grouped_serves(kind_of(bank), bank.experts, bank.width, bank.hidden, device_info());
}

void moe(const Ctx& ctx, const Tensor& z, const Tensor& ids, const Tensor& weights, const ops::ExpertBank& bank,
         const ops::Glu& activation, const Tensor& out) noexcept {
  K3_CHECK(z.dtype == DType::bf16 && z.contiguous() && out.contiguous() && bank && z.dim(1) == bank.width, "moe: z {}", z.shape_text());
  const int64_t tokens = z.dim(0);
  if (moe_in_parts(bank, tokens)) {
    return grouped(ctx, z, ids, weights, bank, activation, out);
  }
  for (int64_t begin = 0; begin < tokens; begin += kStreamTokens) {
    const int64_t end = std::min(tokens, begin + kStreamTokens);
    stream(ctx, z.slice(begin, end), ids.slice(begin, end), weights.slice(begin, end), bank, activation, out.slice(begin, end));
  }
}

}  // namespace k3::ops::cuda
