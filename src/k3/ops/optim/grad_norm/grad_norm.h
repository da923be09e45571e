// Purpose:  the global norm of all gradients, the factor that clips it, and the first tensor that is not finite.
// Shapes:   a list of flat arrays.
// Units:    none.
// Memory:   out is overwritten; on a GPU it and every array are device memory. Workspace: a double for every 16,384 numbers.
// Threads:  parallel over pieces inside. The sum is taken in a fixed order (pieces of a fixed size, then piece after piece), so it
//           depends on the instruction set only, not on threads.
// Errors:   none. With a NaN or an infinity anywhere bad_tensor is the index of the first such tensor, norm is NaN and scale is
//           NaN, which adamw and muon take as "do nothing".
// Source:   issue text "global clip 1.0"; scale = min(1, max_norm / (norm + 1e-6)), the rule of torch.nn.utils.clip_grad_norm_.
//           Squares are added in double: against ref 1e-12 relative (of up to 2^40 terms), scale a rounding to FP32 more.
#pragma once

#include <cstdint>
#include <span>

#include "k3/ops/ctx.h"

namespace k3::ops {

template <class T>  // float or double
struct GradTensor {
  const T* data = nullptr;
  int64_t count = 0;
};

template <class T>
struct GradNorm {
  double norm = 0;
  T scale = 1;              // what adamw and muon multiply gradients by
  int32_t bad_tensor = -1;  // -1: all are finite
};

void grad_norm(const Ctx& ctx, std::span<const GradTensor<float>> tensors, double max_norm, GradNorm<float>* out) noexcept;
void grad_norm_ref(std::span<const GradTensor<double>> tensors, double max_norm, GradNorm<double>* out) noexcept;

}  // namespace k3::ops
