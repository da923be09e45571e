#include "k3/ops/optim/adamw/adamw.h"

#include <cmath>

#include "k3/ops/optim/adamw/adamw_kernel.h"
#include "k3/ops/optim/cuda/optim_dispatch.h"
#include "k3/ops/optim/pieces.h"

namespace k3::ops {
namespace {

AdamwFn adamw_fn(Isa isa) {
  if (isa >= Isa::avx512) return adamw_avx512;
  return isa == Isa::avx2 ? adamw_avx2 : adamw_portable;
}

}  // namespace

void adamw(const Ctx& ctx, std::span<const AdamwTensor<float>> tensors, const AdamwOptions& options, const float* scale) noexcept {
  K3_CHECK(options.step >= 1, "adamw: step {}", options.step);
  if (ctx.device.is_cuda()) return cuda::adamw(ctx, tensors, options, scale);
  if (scale != nullptr && std::isnan(*scale)) return;
  const auto steps = static_cast<double>(options.step);
  const double c1 = 1 - std::pow(options.beta1, steps), c2 = 1 - std::pow(options.beta2, steps);
  const AdamwFn fn = adamw_fn(ctx.isa);
  run_pieces(ctx, tensors, first_pieces(tensors), [&](const Piece& piece) {
    const AdamwTensor<float>& t = tensors[piece.array];
    fn({.weight = t.weight + piece.begin,
        .first = t.first + piece.begin,
        .second = t.second + piece.begin,
        .grad = t.grad + piece.begin,
        .bf16 = t.bf16 == nullptr ? nullptr : t.bf16 + piece.begin,
        .count = piece.end - piece.begin,
        .scale = scale == nullptr ? 1.0F : *scale,
        .one_minus_beta1 = static_cast<float>(1 - options.beta1),
        .beta2 = static_cast<float>(options.beta2),
        .one_minus_beta2 = static_cast<float>(1 - options.beta2),
        .keep = static_cast<float>(1 - t.lr * t.decay),
        .step = static_cast<float>(t.lr / c1),
        .second_scale = static_cast<float>(1 / c2),
        .eps = static_cast<float>(options.eps)});
  });
}

}  // namespace k3::ops
