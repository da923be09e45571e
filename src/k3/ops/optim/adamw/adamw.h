// Purpose:  one AdamW step over a list of parameters, with decoupled weight decay and an optional BF16 copy.
// Shapes:   weight, first, second, grad, bf16 [count] each.
// Units:    lr and decay as factors: the weight shrinks by lr * decay a step. step counts from 1.
// Memory:   weight, first, second and bf16 (when given) are overwritten; first and second start at zero. On a GPU every pointer
//           is device memory. No workspace on the CPU.
// Threads:  parallel over pieces of the list inside; results do not depend on the thread count.
// Errors:   K3_CHECK on step < 1. `scale` multiplies the gradient (GradNorm::scale); a NaN there means that the gradient is not
//           finite: nothing changes then.
// Source:   training.md 2.1. With g the scaled gradient and c_i = 1 - beta_i^step:
//             m += (1 - beta1) (g - m); v = beta2 v + (1 - beta2) g^2
//             w = w (1 - lr decay) - lr / c1 * m / (sqrt(v / c2) + eps)
//           which is torch.optim.AdamW. adamw_ref is the same in double: oracle, and optimizer of runs in double.
//           FP32 against ref after one step: first 3e-7 (|old| + |new| + |g|), second 3e-7 (three
//           roundings of 6e-8), weight 2e-7 |w| (the shrinking factor and the sum) + 2e-6 (|update| + lr) (a quotient of about
//           ten roundings, whose top may be a difference of larger numbers).
#pragma once

#include <cstdint>
#include <span>

#include "k3/ops/ctx.h"

namespace k3::ops {

template <class T>  // float or double
struct AdamwTensor {
  T* weight = nullptr;
  T* first = nullptr;   // running mean of g
  T* second = nullptr;  // running mean of g^2
  const T* grad = nullptr;
  uint16_t* bf16 = nullptr;  // the new weight rounded to BF16, for computing; may be null
  int64_t count = 0;
  double lr = 0;
  double decay = 0;
};

struct AdamwOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  int64_t step = 1;
};

void adamw(const Ctx& ctx, std::span<const AdamwTensor<float>> tensors, const AdamwOptions& options,
           const float* scale = nullptr) noexcept;
void adamw_ref(std::span<const AdamwTensor<double>> tensors, const AdamwOptions& options, const double* scale = nullptr) noexcept;

}  // namespace k3::ops
