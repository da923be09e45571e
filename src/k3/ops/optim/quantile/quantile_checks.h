// Internal to ops/optim. Argument checks of quantile.h.
#pragma once

#include "k3/base/check.h"
#include "k3/ops/optim/quantile/quantile.h"

namespace k3::ops {

template <class T>
inline QuantileInput<T> checked_input(QuantileInput<T> in) {
  K3_CHECK(in.tokens >= 0 && in.topk >= 1 && in.topk < in.experts, "quantile: {} tokens, top {} of {} experts", in.tokens, in.topk,
           in.experts);
  if (in.stride == 0) in.stride = in.experts;
  return in;
}

inline void check_update(int64_t experts, int64_t topk) {
  K3_CHECK(topk >= 1 && topk < experts, "quantile: top {} of {} experts", topk, experts);
}

}  // namespace k3::ops
