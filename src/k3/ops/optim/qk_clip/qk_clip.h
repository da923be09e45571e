// Purpose:  QK-clip: shrinks the query and key rows of the MLA heads whose largest logit of the step exceeded a threshold.
// Shapes:   q [heads * (nope + rope), q_cols] (q_b_proj, or q_proj without a query rank); kv [heads * (nope + value), kv_cols]
//           (kv_b_proj); max_logits, gamma [heads].
// Units:    max_logits: largest softmax scale * q . k of the head over the global batch of the step.
// Memory:   q, kv and their BF16 copies (when given) are overwritten in place. On a GPU every pointer is device memory.
// Threads:  parallel over heads inside.
// Errors:   K3_CHECK on sizes and tau <= 0. A largest logit that is NaN, negative or no more than tau leaves its head alone, to
//           the bit.
// Source:   training.md 2.3: gamma = min(1, tau / S); query rows of the nope part and key rows times sqrt(gamma), query rows of the
//           rope part times gamma, because the key's shared 64 columns belong to all heads and stay. Values stay. Afterwards
//           every logit of the head is gamma times what it was. FP32 against ref: 2e-7 relative (factor and product).
#pragma once

#include <cstdint>

#include "k3/ops/ctx.h"

namespace k3::ops {

template <class T>  // float or double
struct QkClip {
  int64_t heads = 0, nope = 0, rope = 0, value = 0;
  T* q = nullptr;
  uint16_t* q_bf16 = nullptr;
  int64_t q_cols = 0;
  T* kv = nullptr;
  uint16_t* kv_bf16 = nullptr;
  int64_t kv_cols = 0;
  const T* max_logits = nullptr;
  T* gamma = nullptr;  // what was applied, when given
  double tau = 100;
};

void qk_clip(const Ctx& ctx, const QkClip<float>& args) noexcept;
void qk_clip_ref(const QkClip<double>& args) noexcept;

}  // namespace k3::ops
