#include "k3/ops/router/router.h"

#include <cmath>
#include <limits>

#include "k3/base/check.h"
#include "k3/ops/cpu/vec_apply.h"
#include "k3/ops/cuda/dispatch.h"

namespace k3::ops {
namespace {

// Keeps the topk best of `scores` in ids, best first; an equal score stays behind the earlier index. best is scratch.
void select(const float* scores, int64_t experts, int64_t topk, float* best, int32_t* ids) {
  int64_t held = 0;
  for (int64_t e = 0; e < experts; ++e) {
    // NaN ranks last, so that ids are valid whatever comes in; its weight stays NaN and shows the fault.
    const float score = std::isnan(scores[e]) ? -std::numeric_limits<float>::infinity() : scores[e];
    if (held == topk && score <= best[topk - 1]) continue;
    int64_t at = held < topk ? held++ : topk - 1;
    for (; at > 0 && best[at - 1] < score; --at) {
      best[at] = best[at - 1];
      ids[at] = ids[at - 1];
    }
    best[at] = score;
    ids[at] = static_cast<int32_t>(e);
  }
}

}  // namespace

void router(const Ctx& ctx, const Tensor& logits, const Tensor& bias, const RouterOptions& options, const Tensor& ids,
            const Tensor& weights) noexcept {
  if (ctx.device.is_cuda()) return cuda::router(ctx, logits, bias, options, ids, weights);
  K3_CHECK(logits.rank == 2 && logits.dtype == DType::f32, "router: logits {}", logits.shape_text());
  const int64_t tokens = logits.dim(0), experts = logits.dim(1), topk = options.topk;
  K3_CHECK(topk >= 1 && topk <= experts, "router: top {} of {} experts", topk, experts);
  K3_CHECK(!bias || (bias.rank == 1 && bias.dim(0) == experts && bias.dtype == DType::f32), "router: bias {}",
           bias.shape_text());
  for (const Tensor* t : {&ids, &weights}) {
    K3_CHECK(t->rank == 2 && t->dim(0) == tokens && t->dim(1) == topk, "router: {} for {} tokens, top {}", t->shape_text(),
             tokens, topk);
  }
  K3_CHECK(ids.dtype == DType::i32 && weights.dtype == DType::f32);
  const Workspace::Scope scope(*ctx.workspace);
  const Tensor scores = ctx.workspace->tensor({tokens, experts});
  const Tensor biased = ctx.workspace->tensor({tokens, experts});
  const Tensor best = ctx.workspace->tensor({tokens, topk});
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* s = scores.row(t);
      vec_apply(ctx.isa, VecFn::sigmoid, logits.row(t), experts, s);
      float* b = biased.row(t);
      for (int64_t e = 0; e < experts; ++e) b[e] = bias ? s[e] + bias.f32()[e] : s[e];
      int32_t* chosen = static_cast<int32_t*>(ids.data) + t * ids.stride(0);
      select(b, experts, topk, best.row(t), chosen);
      float sum = 0;
      for (int64_t j = 0; j < topk; ++j) sum += s[chosen[j]];
      const float factor = options.renormalise ? options.scale / (sum + 1e-20F) : options.scale;
      for (int64_t j = 0; j < topk; ++j) weights.row(t)[j] = s[chosen[j]] * factor;
    }
  };
  if (tokens <= 4) return body(0, tokens);  // about a microsecond a token
  ctx.pool->parallel_for(tokens, 1, body);
}

}  // namespace k3::ops
