// Purpose:  the last layer and its loss in one: logits of a few tokens at a time, so that they never lie in memory whole.
// Shapes:   x [T, hidden]; head [V, hidden]; targets [T], -1: no loss; all f32 or all f64 (on a GPU x and head bf16).
// Units:    nats.
// Memory:   with a tape the gradients of x and head are added to at once (nothing is recorded: the loss is the last of a
//           forward), each token's scaled by `scale`. Scratch: tokens of a chunk times V.
// Threads:  parallel inside; sums in a fixed order.
// Errors:   K3_CHECK on shapes and on targets below V.
// Source:   training.md 7: loss_t = log sum exp logits - logits[target]; d logits = (softmax - onehot) scale. Tolerance of f32
//           against f64: loss 1e-6 relative, gradients norm ratio 1e-5.
#pragma once

#include <span>

#include "k3/ops/ctx.h"
#include "k3/ops/weight.h"

namespace k3::ops {

struct CrossEntropy {
  double nats = 0;     // summed over tokens with a target; on a GPU 0: added to TrainStep::nats
  int64_t tokens = 0;  // these
};
CrossEntropy cross_entropy(const Ctx& ctx, const Tensor& x, const Weight& head, std::span<const int32_t> targets, double scale) noexcept;

}  // namespace k3::ops
