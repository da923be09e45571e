// Purpose:  MLA on a tape: causal attention within each sequence of the batch, in the expanded form, without a cache.
// Shapes:   those of MlaArgs, with kv, all f32 or all f64; every sequence begins at its first token (history is not read).
// Units:    scale (nope + rope)^-0.5.
// Memory:   q, kv and gate must stay as they are until the backward. Kept: latents [T, R], keys and values [T, H (nope + v)],
//           the attention's output [T, H v] and log-sum-exps [T, H]. Probabilities are computed again, a block of queries at a time.
// Threads:  parallel over sequences and heads inside; sums in a fixed order.
// Errors:   K3_CHECK on shapes.
// Source:   o = P v, P = softmax(S): dv = P^T do, dP = do v^T, dS = P (dP - do . o), dq = scale dS k, dk = scale dS^T q; the
//           shared key's gradient is the sum over heads. A tape that watches kv_b as "max_logit" [H] (f64) gets the largest logit of
//           each head (training.md 2.3). Tolerance of f32 against f64: norm ratio 1e-5.
#pragma once

#include "k3/ops/mla/mla.h"

namespace k3::ops {

void mla_train(const Ctx& ctx, const MlaArgs& args) noexcept;

}  // namespace k3::ops
