// Purpose:  Quantile Balancing of the router's bias: per-step histograms of margins, the bias read off them, load figures; and the
//           sign update of auxiliary-loss-free balancing to compare with.
// Shapes:   scores [tokens, experts] (sigmoids, before the bias), rows stride apart; bias [experts]; valid [tokens] u8;
//           histogram [experts, kQuantileBins] i32; ids [tokens, topk] i32; load [experts] i32.
// Units:    histogram and load in tokens.
// Memory:   accumulate adds to histogram and load (micro-batch after micro-batch; ranks by one integer all-reduce); quantile_update
//           overwrites bias and leaves histogram zero. On a GPU every pointer is device memory, histogram aligned to 16 bytes.
//           Workspace: a number a token.
// Threads:  parallel inside; integers, so results do not depend on threads, micro-batches or ranks. bias must not change between
//           the accumulates and the update of a step.
// Errors:   K3_CHECK on sizes, topk >= experts (no cutoff then). tokens = 0 is legal. A token that is not valid (padding) counts
//           nowhere. Without any token quantile_update leaves bias as it is. NaN scores count as 0.
// Source:   training.md 4. Cutoff alpha_i: the (topk + 1)-th largest of s + b (ties count apart). r_ij = alpha_i - s_ij is the bias
//           that would put expert j exactly at the cutoff; MIND THE SIGN: it is alpha - s, and the new bias is the k/n
//           quantile of r, b_j = -(quantile_{1 - k/n} of s - alpha). Bins: lo = min b - 1, w = (max b - min b + 2) / 1000, bin
//           floor((r - lo) / w). Update, with q = m k / n tokens wanted (m: tokens counted) and l the first bin whose cumulative
//           count reaches ceil(q), c the count before it and h its own: b_j = lo + (l + clip((q - c) / h, 0, 1)) w;
//           then the mean over experts is subtracted. `rate` < 1 moves only so far towards it (b += rate (new - b)).
//           FP32: alpha, r and (r - lo) * (1 / w) are single roundings in this order, on every backend: histograms are equal to the
//           bit. The update is in double: biases equal to 1e-7. Against the exact quantile: at most w where margins are
//           dense (h > 0 on both sides), as the report says.
#pragma once

#include <cstdint>

#include "k3/ops/ctx.h"
#include "k3/ops/optim/quantile/bins.h"  // kQuantileBins

namespace k3::ops {

template <class T>  // float or double
struct QuantileInput {
  const T* scores = nullptr;
  int64_t tokens = 0, experts = 0;
  int64_t stride = 0;  // elements from token to token; 0: experts
  int64_t topk = 0;
  const T* bias = nullptr;         // that of this step's routing
  const uint8_t* valid = nullptr;  // null: every token counts
};

void quantile_accumulate(const Ctx& ctx, const QuantileInput<float>& in, int32_t* histogram) noexcept;
void quantile_accumulate_ref(const QuantileInput<float>& in, int32_t* histogram) noexcept;
void quantile_accumulate_ref(const QuantileInput<double>& in, int32_t* histogram) noexcept;

void quantile_update(const Ctx& ctx, int64_t experts, int64_t topk, double rate, int32_t* histogram, float* bias) noexcept;
void quantile_update_ref(int64_t experts, int64_t topk, double rate, int32_t* histogram, float* bias) noexcept;
void quantile_update_ref(int64_t experts, int64_t topk, double rate, int32_t* histogram, double* bias) noexcept;

// The exact rule, from all margins of the step: b_j = -((floor(q) + 1)-th largest of s_ij - alpha_i), minus the mean.
void quantile_bias_ref(const QuantileInput<double>& in, double rate, double* bias) noexcept;

// load[e] += how many valid tokens chose e.
void expert_load(const Ctx& ctx, const int32_t* ids, int64_t tokens, int64_t topk, int64_t experts, const uint8_t* valid,
                 int32_t* load) noexcept;
// Largest load / mean load - 1, of host memory; 0 without tokens.
double load_violation(const int32_t* load, int64_t experts) noexcept;

// b_j += rate * sign(mean load - load_j).
void sign_balance(const Ctx& ctx, const int32_t* load, int64_t experts, double rate, float* bias) noexcept;
void sign_balance_ref(const int32_t* load, int64_t experts, double rate, double* bias) noexcept;

}  // namespace k3::ops
