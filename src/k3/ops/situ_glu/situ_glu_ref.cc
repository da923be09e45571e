// Oracle of the gated activations in double.
#include <cmath>

#include "k3/ops/situ_glu/situ_glu.h"

namespace k3::ops {
namespace {

double glu_value_ref(double g, double u, const Glu& kind) {
  const double sigmoid = 1.0 / (1.0 + std::exp(-g));
  if (kind.kind == GluKind::silu) return g * sigmoid * u;
  const double beta = static_cast<double>(kind.beta);
  if (kind.linear_beta) {
    const double linear_beta = static_cast<double>(*kind.linear_beta);
    u = linear_beta * std::tanh(u / linear_beta);
  }
  return beta * std::tanh(g / beta) * sigmoid * u;
}

}  // namespace

void glu_ref(const Tensor& gate, const Tensor& up, const Glu& kind, const Tensor& out) noexcept {
  for (int64_t t = 0; t < gate.dim(0); ++t) {
    for (int64_t i = 0; i < gate.dim(1); ++i) {
      out.row(t)[i] =
          static_cast<float>(glu_value_ref(static_cast<double>(gate.row(t)[i]), static_cast<double>(up.row(t)[i]), kind));
    }
  }
}

}  // namespace k3::ops
