#include "k3/ops/optim/grad_norm/grad_norm.h"

#include <cmath>
#include <limits>

#include "k3/ops/optim/cuda/optim_dispatch.h"
#include "k3/ops/optim/grad_norm/sum_squares.h"
#include "k3/ops/optim/pieces.h"

namespace k3::ops {
namespace {

SumSquaresFn sum_squares_fn(Isa isa) {
  if (isa >= Isa::avx512) return sum_squares_avx512;
  return isa == Isa::avx2 ? sum_squares_avx2 : sum_squares_portable;
}

}  // namespace

void grad_norm(const Ctx& ctx, std::span<const GradTensor<float>> tensors, double max_norm, GradNorm<float>* out) noexcept {
  if (ctx.device.is_cuda()) return cuda::grad_norm(ctx, tensors, max_norm, out);
  const std::vector<int64_t> first = first_pieces(tensors);
  const Workspace::Scope scope(*ctx.workspace);
  auto* sums = static_cast<double*>(ctx.workspace->bytes((first.back() + 1) * static_cast<int64_t>(sizeof(double))));
  const SumSquaresFn fn = sum_squares_fn(ctx.isa);
  run_pieces(ctx, tensors, first, [&](const Piece& piece) {
    sums[piece.number] = fn(tensors[piece.array].data + piece.begin, piece.end - piece.begin);
  });
  *out = {};
  double total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t p = first[i]; p < first[i + 1]; ++p) {
      // A square of a finite float, and 2^64 of them, are finite in double.
      if (!std::isfinite(sums[p]) && out->bad_tensor < 0) out->bad_tensor = static_cast<int32_t>(i);
      total += sums[p];
    }
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  out->norm = out->bad_tensor < 0 ? std::sqrt(total) : kNan;
  out->scale = static_cast<float>(out->bad_tensor < 0 ? std::min(1.0, max_norm / (out->norm + 1e-6)) : kNan);
}

void grad_norm_ref(std::span<const GradTensor<double>> tensors, double max_norm, GradNorm<double>* out) noexcept {
  *out = {};
  double total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t j = 0; j < tensors[i].count; ++j) {
      const double x = tensors[i].data[j];
      if (!std::isfinite(x) && out->bad_tensor < 0) out->bad_tensor = static_cast<int32_t>(i);
      total += x * x;
    }
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  out->norm = out->bad_tensor < 0 ? std::sqrt(total) : kNan;
  out->scale = out->bad_tensor < 0 ? std::min(1.0, max_norm / (out->norm + 1e-6)) : kNan;
}

}  // namespace k3::ops
