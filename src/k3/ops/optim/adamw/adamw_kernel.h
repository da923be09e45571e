// Internal to ops/optim. The loop of adamw() over one piece.
#pragma once

#include <cstdint>

namespace k3::ops {

struct AdamwPiece {
  float* weight;
  float* first;
  float* second;
  const float* grad;
  uint16_t* bf16;  // may be null
  int64_t count;
  float scale;                  // of the gradient
  float one_minus_beta1, beta2, one_minus_beta2;
  float keep;                   // 1 - lr decay
  float step;                   // lr / (1 - beta1^step)
  float second_scale;           // 1 / (1 - beta2^step)
  float eps;
};

using AdamwFn = void (*)(const AdamwPiece&);
void adamw_portable(const AdamwPiece& piece) noexcept;
void adamw_avx2(const AdamwPiece& piece) noexcept;
void adamw_avx512(const AdamwPiece& piece) noexcept;

}  // namespace k3::ops
