// Purpose:  Block AttnRes on a tape, with the sum, the bank and the norm of a site, and the fold of its query.
// Shapes:   those of attn_res.h, all f32 or all f64. kept [T, hidden]: the prefix as the site mixed it.
// Units:    none.
// Memory:   attn_res_vjp adds to dblocks and dprefix (or writes those that are fresh), dquery and dnorm.
// Threads:  parallel over tokens inside; sums over tokens in a fixed order.
// Errors:   K3_CHECK on shapes and on N <= 64 blocks.
// Source:   m = sum_j p_j V_j, p = softmax(s), s_j = q . V_j r_j, r_j = rsqrt(mean V_j^2 + eps): with dm (out = rms_norm(m)),
//           ds_j = p_j (dm . V_j - sum_i p_i dm . V_i), dV_j = p_j dm + ds_j r_j (q - V_j (q . V_j) r_j^2 / hidden),
//           dq = sum ds_j r_j V_j. Tolerance of f32 against f64: norm ratio 1e-5.
#pragma once

#include "k3/ops/attn_res/attn_res.h"

namespace k3::ops {

class Tape;

void attn_res_site_train(const Ctx& ctx, const AttnResSite& site) noexcept;

// query = norm * projection, of the parameters a checkpoint stores apart.
void fold_query(const Ctx& ctx, const Tensor& norm, const Tensor& projection, const Tensor& query) noexcept;

}  // namespace k3::ops
