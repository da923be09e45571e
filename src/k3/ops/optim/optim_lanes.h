// Internal to ops/optim. The vectors of cpu/lanes.h with what optimizer steps need beside: square roots and stores as BF16.
#pragma once

#include <cmath>

#include "k3/ops/cpu/lanes.h"

namespace k3::ops {

struct OptimLanesPortable : LanesPortable {
  static constexpr int kTileRows = 4, kTileVectors = 2;  // 8 sums, 2 vectors and a factor in 16 registers
  static K3_VEC_INLINE F sqrt(F x) {
    return F{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]), __builtin_sqrtf(x[3])};
  }
  static K3_VEC_INLINE void store_bf16(uint16_t* p, F x, int64_t n = kWidth) {
    for (int64_t i = 0; i < n; ++i) p[i] = float_to_bf16(x[i]);
  }
};

}  // namespace k3::ops
