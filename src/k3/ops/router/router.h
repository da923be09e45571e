// Purpose:  sigmoid top-k routing with a selection bias.
// Shapes:   logits [T, E] f32; bias [E] f32 (may be empty); ids [T, topk] i32; weights [T, topk] f32.
// Units:    none.
// Memory:   ids and weights are overwritten, best expert first.
// Threads:  parallel over tokens inside.
// Errors:   K3_CHECK on shapes, topk <= E. T = 0 is legal.
// Source:   model.md 3.6: the biased score chooses, the unbiased sigmoid weighs; ties go to the lowest index;
//           renormalise divides by (sum + 1e-20); then times scale. FP32. Tolerance against ref: ids equal unless
//           two biased scores differ by less than 1e-6; weights 1e-6.
#pragma once

#include "k3/ops/ctx.h"

namespace k3::ops {

struct RouterOptions {
  int64_t topk = 1;
  bool renormalise = true;
  float scale = 1.0F;
};

void router(const Ctx& ctx, const Tensor& logits, const Tensor& bias, const RouterOptions& options, const Tensor& ids,
            const Tensor& weights) noexcept;
void router_ref(const Tensor& logits, const Tensor& bias, const RouterOptions& options, const Tensor& ids,
                const Tensor& weights) noexcept;

}  // namespace k3::ops
