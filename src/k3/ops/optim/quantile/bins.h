// Internal to ops/optim. Size of the histograms, for host and device code.
#pragma once

#include <cstdint>

namespace k3::ops {

inline constexpr int64_t kQuantileBins = 1000;

}  // namespace k3::ops
