// Purpose:  Block AttnRes: softmax over depth of the banked block rows and the running prefix sum.
// Shapes:   blocks [N, T, hidden] f32 (N >= 0 banked rows); prefix [T, hidden]; query [hidden] = norm weight
//           times projection, folded at load; norm [hidden] or none; out [T, hidden].
// Units:    none; there is no 1/sqrt(d).
// Memory:   out is overwritten; it may be prefix, never a block.
// Threads:  parallel over tokens inside.
// Errors:   K3_CHECK on shapes and on N <= 1024. With N = 0 out is prefix.
// Source:   model.md 3.1, kernels.md 6: s_j = query . (V_j * rsqrt(mean V_j^2 + eps)), out = sum softmax(s)_j V_j
//           (values not normalised); with a norm, out = that * rsqrt(mean that^2 + eps) * norm, bit for bit what rms_norm
//           makes of it: the next op wants it so, and here the row is in the first cache. Scores are summed in double, the mix in FP32. Tolerance
//           against ref: norm ratio 2e-6 (FP32 mix).
#pragma once

#include "k3/ops/ctx.h"

namespace k3::ops {

void attn_res(const Ctx& ctx, const Tensor& blocks, const Tensor& prefix, const Tensor& query, float eps,
              const Tensor& out, const Tensor& norm = {}) noexcept;
// What stands between two sub-layers, in one pass: the output of the last one is added to the prefix, the prefix is banked
// when a block begins, the rows are mixed and normed for the next one.
struct AttnResSite {
  Tensor delta = {};    // [T, hidden] or none: prefix += delta, rounded to the prefix's dtype
  Tensor prefix = {};   // [T, hidden]
  // BF16 prefixes alone: [T, hidden] or none. What rounding cut off the prefix, read unless it is `exact`; with delta it is
  // replaced, and the mix sees prefix and rest: 16 bits of the sum.
  Tensor rest = {};
  bool exact = false;
  Tensor bank_to = {};  // [T, hidden] or none: receives the prefix; not yet among `blocks`
  Tensor blocks = {};   // [N, T, hidden]; none or N = 0: only the norm
  Tensor query = {}, norm = {};
  float eps = 0;
  Tensor out = {};       // [T, hidden]
  // BF16 alone: [T, hidden] or none, for what rounding cuts off out. Of products behind the site (linear_many) those of full precision
  // meet both rows, and where that costs nothing, in one launch of one token, all. Where one launch computes site and products it is not written.
  Tensor out_rest = {};
};
void attn_res_site(const Ctx& ctx, const AttnResSite& site) noexcept;

void attn_res_ref(const Tensor& blocks, const Tensor& prefix, const Tensor& query, float eps, const Tensor& out) noexcept;

}  // namespace k3::ops
