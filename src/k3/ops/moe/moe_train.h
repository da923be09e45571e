// Purpose:  the routed part of a MoE layer on a tape: router, experts, weighted sum, norm, shared down product.
// Shapes:   those of RoutedExperts, all f32 or all f64; experts in f32 (f64). Positions: tokens in the order of experts.
// Units:    none.
// Memory:   z, logits and shared_hidden must stay as they are until the backward. Kept per routed token: gate and up [F].
// Threads:  parallel inside; sums in a fixed order.
// Errors:   K3_CHECK on shapes.
// Source:   training.md 5: the weight's gradient is <W_down^T g, h>, so outputs of experts are not kept; through the normalisation
//           ds_j = (scale dp_j - sum_r p_r dp_r) / sum s. The selection has no gradient, nor has the bias. Tolerance of f32 against f64:
//           norm ratio 1e-5, where both choose the same experts.
#pragma once

#include "k3/ops/moe/moe.h"

namespace k3::ops {

void routed_experts_train(const Ctx& ctx, const RoutedExperts& args) noexcept;

}  // namespace k3::ops
