#include "k3/ops/optim/quantile/quantile.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/optim/cuda/optim_dispatch.h"
#include "k3/ops/optim/quantile/quantile_checks.h"
#include "k3/ops/optim/quantile/quantile_kernel.h"

namespace k3::ops {
namespace {

constexpr int64_t kTokensATask = 256;

CutoffFn cutoff_fn(Isa isa) {
  if (isa >= Isa::avx512) return cutoffs_avx512;
  return isa == Isa::avx2 ? cutoffs_avx2 : cutoffs_portable;
}

// Any topk, a token at a time.
void cutoffs_any(const CutoffJob& job) {
  std::vector<float> biased(static_cast<size_t>(job.experts));
  for (int64_t t = job.begin; t < job.end; ++t) {
    for (int64_t e = 0; e < job.experts; ++e) {
      const float s = job.scores[t * job.stride + e];
      biased[static_cast<size_t>(e)] = (s > 0 ? s : 0.0F) + job.bias[e];
    }
    std::nth_element(biased.begin(), biased.begin() + job.topk, biased.end(), std::greater<>());
    job.cutoffs[t] = biased[static_cast<size_t>(job.topk)];
  }
}

// Expert groups small enough that every worker gets several.
int64_t experts_a_task(const Ctx& ctx, int64_t experts) {
  return std::max<int64_t>(4, experts / (4 * worker_count(ctx)));
}

}  // namespace

void quantile_accumulate(const Ctx& ctx, const QuantileInput<float>& input, int32_t* histogram) noexcept {
  const QuantileInput<float> in = checked_input(input);
  if (in.tokens == 0) return;
  if (ctx.device.is_cuda()) return cuda::quantile_accumulate(ctx, in, histogram);
  const Workspace::Scope scope(*ctx.workspace);
  float* const cutoffs = ctx.workspace->tensor({in.tokens}).f32();
  const CutoffFn fn = in.topk < kMostCutoffVectors ? cutoff_fn(ctx.isa) : cutoffs_any;
  run_tasks(ctx, (in.tokens + kTokensATask - 1) / kTokensATask, [&](int, int64_t task) {
    const int64_t begin = task * kTokensATask;
    fn({.scores = in.scores, .stride = in.stride, .experts = in.experts, .topk = in.topk, .bias = in.bias, .begin = begin,
        .end = std::min(in.tokens, begin + kTokensATask), .cutoffs = cutoffs});
  });
  const QuantileRange<float> range = quantile_range(in.bias, in.experts, kQuantileBins);
  const int64_t group = experts_a_task(ctx, in.experts);
  run_tasks(ctx, (in.experts + group - 1) / group, [&](int, int64_t task) {
    const int64_t begin = task * group, end = std::min(in.experts, begin + group);
    for (int64_t t = 0; t < in.tokens; ++t) {
      if (in.valid != nullptr && in.valid[t] == 0) continue;
      const float* s = in.scores + t * in.stride;
      for (int64_t e = begin; e < end; ++e) ++histogram[e * kQuantileBins + quantile_bin(cutoffs[t], s[e], range, kQuantileBins)];
    }
  });
}

void quantile_update(const Ctx& ctx, int64_t experts, int64_t topk, double rate, int32_t* histogram, float* bias) noexcept {
  check_update(experts, topk);
  if (ctx.device.is_cuda()) return cuda::quantile_update(ctx, experts, topk, rate, histogram, bias);
  quantile_update_ref(experts, topk, rate, histogram, bias);  // a thousand numbers an expert and step
}

void expert_load(const Ctx& ctx, const int32_t* ids, int64_t tokens, int64_t topk, int64_t experts, const uint8_t* valid,
                 int32_t* load) noexcept {
  K3_CHECK(tokens >= 0 && topk >= 1 && topk <= experts, "expert_load: {} tokens, top {} of {}", tokens, topk, experts);
  if (tokens == 0) return;
  if (ctx.device.is_cuda()) return cuda::expert_load(ctx, ids, tokens, topk, experts, valid, load);
  for (int64_t t = 0; t < tokens; ++t) {
    if (valid != nullptr && valid[t] == 0) continue;
    for (int64_t j = 0; j < topk; ++j) ++load[ids[t * topk + j]];
  }
}

double load_violation(const int32_t* load, int64_t experts) noexcept {
  int64_t sum = 0, most = 0;
  for (int64_t e = 0; e < experts; ++e) {
    sum += load[e];
    most = std::max<int64_t>(most, load[e]);
  }
  return sum == 0 ? 0 : static_cast<double>(most) * static_cast<double>(experts) / static_cast<double>(sum) - 1;
}

void sign_balance(const Ctx& ctx, const int32_t* load, int64_t experts, double rate, float* bias) noexcept {
  if (ctx.device.is_cuda()) return cuda::sign_balance(ctx, load, experts, rate, bias);
  int64_t sum = 0;
  for (int64_t e = 0; e < experts; ++e) sum += load[e];
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t missing = sum - load[e] * experts;  // its sign is that of mean - load
    bias[e] += static_cast<float>(rate) * static_cast<float>((missing > 0) - (missing < 0));
  }
}

}  // namespace k3::ops
