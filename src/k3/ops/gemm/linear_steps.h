// Internal to ops/gemm. Products whose parts want an activation or a sum behind them, on kernels that know neither.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/gemm/linear.h"

namespace k3::ops {

inline bool needs_more(std::span<const LinearPart> parts) {
  return std::any_of(parts.begin(), parts.end(), [](const LinearPart& p) { return p.up || p.accumulate; });
}

// plain(parts) computes all products, into scratch where something follows.
template <class Plain>
void linear_in_steps(const Ctx& ctx, const Tensor& x, std::span<const LinearPart> parts, const Plain& plain) {
  const Workspace::Scope scope(*ctx.workspace);
  std::vector<LinearPart> all;
  for (const LinearPart& p : parts) {
    LinearPart first{p.w, p.y, p.full_precision};
    if (p.accumulate) first.y = ctx.workspace->tensor({x.dim(0), p.w.rows}, p.y.dtype);
    all.push_back(first);
    if (p.up) all.push_back({p.up, ctx.workspace->tensor({x.dim(0), p.w.rows}, p.y.dtype), p.full_precision});
  }
  plain(all);
  size_t at = 0;
  for (const LinearPart& p : parts) {
    const LinearPart& first = all[at++];
    if (p.up) glu(ctx, first.y, all[at++].y, *p.glu, first.y);
    if (p.accumulate) add(ctx, first.y, p.y);
  }
}

}  // namespace k3::ops
