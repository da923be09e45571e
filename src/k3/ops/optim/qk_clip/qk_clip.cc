#include "k3/ops/optim/qk_clip/qk_clip.h"

#include <cmath>

#include "k3/ops/cpu/tasks.h"
#include "k3/ops/optim/cuda/optim_dispatch.h"

namespace k3::ops {
namespace {

template <class T>
void check(const QkClip<T>& a) {
  K3_CHECK(a.heads >= 0 && a.nope > 0 && a.rope >= 0 && a.value >= 0 && a.q_cols > 0 && a.kv_cols > 0,
           "qk_clip: {} heads of {} + {}, {}, columns {} and {}", a.heads, a.nope, a.rope, a.value, a.q_cols, a.kv_cols);
  K3_CHECK(a.tau > 0, "qk_clip: tau {}", a.tau);
}

template <class T>
void scale(T* x, uint16_t* bf16, int64_t begin, int64_t count, T factor) {
  for (int64_t i = begin; i < begin + count; ++i) {
    x[i] *= factor;
    if (bf16 != nullptr) bf16[i] = float_to_bf16(static_cast<float>(x[i]));
  }
}

template <class T>
void clip_head(const QkClip<T>& a, int64_t h) {
  const auto logit = static_cast<double>(a.max_logits[h]);
  const double gamma = logit > a.tau ? a.tau / logit : 1;  // NaN: 1
  if (a.gamma != nullptr) a.gamma[h] = static_cast<T>(gamma);
  if (gamma == 1) return;
  const auto root = static_cast<T>(std::sqrt(gamma));
  const int64_t q = h * (a.nope + a.rope) * a.q_cols;
  scale(a.q, a.q_bf16, q, a.nope * a.q_cols, root);
  scale(a.q, a.q_bf16, q + a.nope * a.q_cols, a.rope * a.q_cols, static_cast<T>(gamma));
  scale(a.kv, a.kv_bf16, h * (a.nope + a.value) * a.kv_cols, a.nope * a.kv_cols, root);
}

}  // namespace

void qk_clip(const Ctx& ctx, const QkClip<float>& args) noexcept {
  check(args);
  if (ctx.device.is_cuda()) return cuda::qk_clip(ctx, args);
  run_tasks(ctx, args.heads, [&](int, int64_t h) { clip_head(args, h); });
}

void qk_clip_ref(const QkClip<double>& args) noexcept {
  check(args);
  for (int64_t h = 0; h < args.heads; ++h) clip_head(args, h);
}

}  // namespace k3::ops
