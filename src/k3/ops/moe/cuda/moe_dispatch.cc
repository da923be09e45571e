#include <algorithm>
#include <cmath>

#include "k3/ops/cuda/dispatch.h"
#include "k3/ops/cuda/op_state.h"
#include "k3/ops/gemm/linear.h"
#include "k3/ops/moe/cuda/moe_fetch_cuda.h"
#include "k3/ops/moe/cuda/moe_grouped_cuda.h"
#include "k3/ops/moe/cuda/moe_plain.h"
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
  if (ctx.gpu->on_routes) ctx.gpu->on_routes(ids);
}

namespace {

MoeWeights kind_of(const ops::ExpertBank& bank) { return bank.scheme == Scheme::mxfp4 ? MoeWeights::mxfp4 : MoeWeights::bf16; }

int64_t half_bytes(const ops::ExpertBank& bank, int64_t rows, int64_t cols) {
  return plain_device() ? moe_plain_bytes(kind_of(bank), rows, cols) : moe_packed_bytes(kind_of(bank), rows, cols);
}
int64_t gate_up_bytes(const ops::ExpertBank& bank) { return half_bytes(bank, 2 * bank.hidden, bank.width); }
int64_t down_bytes(const ops::ExpertBank& bank) { return half_bytes(bank, bank.width, bank.hidden); }

constexpr int64_t kRoutedInside = 256, kNormedApart = 8;
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
  f.uses = at.uses;
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

// What a call of the streaming kernels is given besides: its routing done, or the logits of it; what follows the sum.
struct Besides {
  Tensor ids = {}, weights = {};
  MoeRouteCuda route = {};
  int64_t topk = 0;
  MoeSharedCuda shared = {};
  Tensor add = {}, norm = {};
  float eps = 0;
};

void stream(const Ctx& ctx, const Tensor& z, const Besides& b, const ops::ExpertBank& bank, const ops::Glu& activation,
            const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  const int64_t tokens = z.dim(0), topk = b.topk;
  MoeStreamCuda s;
  s.weights = experts_of(bank);
  s.glu = glu_of(activation);
  s.z = z.data;
  s.ids = static_cast<const int32_t*>(b.ids.data);
  s.route = b.route;
  s.shared = b.shared;
  s.tokens = static_cast<int>(tokens);
  s.topk = static_cast<int>(topk);
  s.first_expert = bank.first;
  s.slot_out = ctx.workspace->tensor({tokens * topk, bank.width}).f32();
  s.sum.weights = static_cast<const float*>(b.weights.data);
  s.sum.add = b.add.data;
  s.sum.norm_weight = b.norm.data;
  s.sum.norm_f32 = b.norm.dtype == DType::f32;
  s.sum.eps = b.eps;
  s.sum.out = out.data;
  const Result<void*> counters = ctx.gpu->zeroed(moe_stream_workspace_bytes(kStreamTokens, topk, bank.experts, bank.hidden));
  if (!counters.ok()) end_exhausted(counters.error().message);
  s.workspace = *counters;
  if (bank.store != nullptr) fetch(ctx, b.ids, bank, true);
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
  g.routed_experts = static_cast<int>(bank.routed);
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

void plain(const Ctx& ctx, const Tensor& z, const Tensor& ids, const Tensor& weights, const ops::ExpertBank& bank,
           const ops::Glu& activation, const Tensor& out) {
  const Workspace::Scope scope(*ctx.workspace);
  MoePlain p;
  p.weights = experts_of(bank);
  p.glu = glu_of(activation);
  p.z = z.data;
  p.ids = static_cast<const int32_t*>(ids.data);
  p.gates = weights.f32();
  p.tokens = static_cast<int>(z.dim(0));
  p.topk = static_cast<int>(ids.dim(1));
  p.first_expert = bank.first;
  p.hidden = ctx.workspace->tensor({z.dim(0) * ids.dim(1), bank.hidden}, DType::bf16).data;
  p.out = out.data;
  ctx.gpu->note({moe_plain_launch(p, ctx.stream)}, "moe");
}

// An expert into a bank of moe_plain.h: codes of w1 and w3 side by side, then their scales; w2 alike.
Status copy_expert(const ops::ExpertBank& bank, std::byte* gate_up, std::byte* down, const Weight& w1, const Weight& w2, const Weight& w3,
                   Stream stream) {
  const int64_t codes = moe_plain_codes(kind_of(bank), bank.hidden, bank.width), all = moe_plain_bytes(kind_of(bank), bank.hidden, bank.width);
  K3_TRY(copy_async(gate_up, w1.data, codes, stream));
  K3_TRY(copy_async(gate_up + codes, w3.data, codes, stream));
  K3_TRY(copy_async(down, w2.data, codes, stream));
  if (all == codes) return {};
  K3_TRY(copy_async(gate_up + 2 * codes, w1.scales, all - codes, stream));
  K3_TRY(copy_async(gate_up + codes + all, w3.scales, all - codes, stream));
  return copy_async(down + codes, w2.scales, all - codes, stream);
}

}  // namespace

ExpertBankBytes expert_bank_bytes(const ops::ExpertBank& bank) {
  return {bank.experts * gate_up_bytes(bank), bank.experts * down_bytes(bank), bank.experts * 16};
}

Status pack_expert(const ops::ExpertBank& bank, int64_t index, const Weight& w1, const Weight& w2, const Weight& w3, Stream stream) {
  const auto at = [](const void* base, int64_t bytes) { return const_cast<std::byte*>(static_cast<const std::byte*>(base)) + bytes; };
  if (plain_device()) {
    return copy_expert(bank, at(bank.gate_up, index * gate_up_bytes(bank)), at(bank.down, index * down_bytes(bank)), w1, w2, w3, stream);
  }
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
  if (tokens > 0 && plain_device()) return plain(ctx, z, ids, weights, bank, activation, out);
  if (moe_in_parts(bank, tokens)) {
    return grouped(ctx, z, ids, weights, bank, activation, out);
  }
  for (int64_t begin = 0; begin < tokens; begin += kStreamTokens) {
    const int64_t end = std::min(tokens, begin + kStreamTokens);
    stream(ctx, z.slice(begin, end), {.ids = ids.slice(begin, end), .weights = weights.slice(begin, end), .topk = ids.dim(1)}, bank,
           activation, out.slice(begin, end));
  }
}

void routed_experts(const Ctx& ctx, const ops::RoutedExperts& a) noexcept {
  const int64_t tokens = a.z.dim(0), topk = a.route.topk;
  if (tokens == 0) return;
  K3_CHECK(a.z.dtype == DType::bf16 && a.z.contiguous() && a.out.contiguous() && a.bank && a.z.dim(1) == a.bank.width, "moe: z {}",
           a.z.shape_text());
  const Workspace::Scope scope(*ctx.workspace);
  // The norm wants whole rows in one block: for few tokens that takes longer there than in a launch of its own.
  const auto summed = [&](Besides b) {
    const bool inside = a.norm && tokens > kNormedApart;
    if (inside) b.norm = a.norm, b.eps = a.eps;
    stream(ctx, a.z, b, a.bank, a.activation, a.out);
    if (a.norm && !inside) cuda::rms_norm(ctx, a.out, a.norm, a.eps, a.out);
  };
  Tensor shared;  // the product, where it has to be one of its own
  const auto separately = [&] {
    if (!a.shared_down) return;
    shared = ctx.workspace->tensor({tokens, a.bank.width}, DType::bf16);
    const ops::LinearPart part{.w = a.shared_down, .y = shared};
    cuda::linear_many(ctx, a.shared_hidden, {&part, 1});
  };
  // Measured on an H200: routing in every block is sooner done than a launch for one token and few experts, else later. Who watches
  // routes, or fetches experts by them, has a router of its own before the same kernel; deterministic sums have one form whatever
  // the number of tokens: that of moe().
  const bool one_launch = !ctx.deterministic && !plain_device();
  const auto route = [&] {
    Besides b{.ids = ctx.workspace->tensor({tokens, topk}, DType::i32), .weights = ctx.workspace->tensor({tokens, topk}), .topk = topk};
    cuda::router(ctx, a.logits, a.bias, a.route, b.ids, b.weights);
    return b;
  };
  if (one_launch && tokens == 1 && a.logits.dim(1) <= kRoutedInside && moe_stream_routes(tokens, topk)) {
    Besides b;
    if (ctx.gpu->on_routes || a.bank.store != nullptr) {
      b = route();
    } else {
      b.route = {.logits = a.logits.f32(),
                 .bias = a.bias ? a.bias.f32() : nullptr,
                 .experts = static_cast<int>(a.logits.dim(1)),
                 .renormalise = a.route.renormalise,
                 .scale = a.route.scale};
      b.topk = topk;
    }
    if (a.shared_down.scheme == Scheme::bf16 && a.shared_down && a.shared_hidden.contiguous() &&
        moe_stream_takes_shared(experts_of(a.bank), tokens, topk, a.shared_down.cols, device_info())) {
      b.shared = {a.shared_down.data, a.shared_hidden.data, static_cast<int>(a.shared_down.cols)};
    } else {
      separately();
    }
    b.add = shared;
    return summed(b);
  }
  separately();
  Besides b = route();
  b.add = shared;
  if (one_launch && tokens <= kStreamTokens) return summed(b);
  cuda::moe(ctx, a.z, b.ids, b.weights, a.bank, a.activation, a.out);
  if (a.norm) cuda::rms_norm(ctx, a.out, a.norm, a.eps, a.out);
  if (shared) cuda::add(ctx, shared, a.out);
}

}  // namespace k3::ops::cuda
