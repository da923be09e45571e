// Purpose:  short_conv over a vector type V of lanes.h: channels in lanes, the last K - 1 inputs in registers.
// Shapes:   short_conv_kernel.h.
// Units:    none.
// Memory:   short_conv_kernel.h.
// Threads:  short_conv_kernel.h.
// Errors:   none.
// Source:   model.md 3.3. Sum from the oldest tap to the newest, whatever the call borders.
#pragma once

#include "k3/ops/cpu/lanes.h"
#include "k3/ops/short_conv/short_conv_kernel.h"

namespace k3::ops {

// One vector of channels [c, c + lanes).
template <class V, int K>
K3_VEC_INLINE void conv_lanes(const ConvRun& run, int64_t c, int64_t lanes) {
  using F = typename V::F;
  F taps[K], past[K];
  K3_UNROLL
  for (int n = 0; n < K; ++n) {
    float column[V::kWidth] = {};
    for (int64_t i = 0; i < lanes; ++i) column[i] = run.taps[(c + i) * K + n];
    taps[n] = V::load(column);
  }
  K3_UNROLL
  for (int n = 0; n + 1 < K; ++n) past[n] = V::load(run.before + n * run.before_stride + c, lanes);
  for (int64_t t = 0; t < run.tokens; ++t) {
    const float* at = run.x + t * run.x_stride + c;
    F x = lanes == V::kWidth ? V::load(at) : V::load(at, lanes);
    if (run.round_bf16) x = V::round_bf16(x);
    past[K - 1] = x;
    F y = V::mul(taps[0], past[0]);
    K3_UNROLL
    for (int n = 1; n < K; ++n) y = V::fma(taps[n], past[n], y);
    y = vec_silu<V>(y);
    float* to = run.y + t * run.y_stride + c;
    lanes == V::kWidth ? V::store(to, y) : V::store(to, y, lanes);
    K3_UNROLL
    for (int n = 0; n + 1 < K; ++n) past[n] = past[n + 1];
  }
}

template <class V, int K>
void conv_taps(const ConvRun& run) {
  int64_t c = 0;
  for (; c + V::kWidth <= run.channels; c += V::kWidth) conv_lanes<V, K>(run, c, V::kWidth);
  if (c < run.channels) conv_lanes<V, K>(run, c, run.channels - c);
}

template <class V>
void conv_kernel(const ConvRun& run) {
  switch (run.taps_count) {
    case 1: return conv_taps<V, 1>(run);
    case 2: return conv_taps<V, 2>(run);
    case 3: return conv_taps<V, 3>(run);
    case 4: return conv_taps<V, 4>(run);
    case 5: return conv_taps<V, 5>(run);
    case 6: return conv_taps<V, 6>(run);
    case 7: return conv_taps<V, 7>(run);
    default: return conv_taps<V, 8>(run);
  }
}

}  // namespace k3::ops
