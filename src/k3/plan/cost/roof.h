// Internal to plan/cost: the slower of two roofs.
#pragma once

#include <algorithm>

#include "k3/plan/cost/deployment.h"

namespace k3::plan {

inline Part roof(double bytes, double bytes_per_second, double flops, double flops_per_second) {
  return {std::max(bytes / bytes_per_second, flops / flops_per_second), bytes, flops};
}

// Peak FLOP/s at which routed experts multiply.
inline double routed_peak(const Deployment& d) {
  return d.precision.routed_fp8 && d.hardware.w4a8 ? d.hardware.fp8_flops_per_second : d.hardware.bf16_flops_per_second;
}

inline double routed_efficiency(const Deployment& d) {
  const bool sliced = d.layout.moe == MoeSharding::tp && d.layout.stage_ranks() > 1;
  return d.efficiency.routed_flops * (sliced ? d.efficiency.sliced_routed : 1);
}

inline int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace k3::plan
