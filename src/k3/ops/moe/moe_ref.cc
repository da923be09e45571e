// Oracle of moe: token by token, expert by expert, double accumulation.
#include <vector>

#include "k3/ops/gemm/linear.h"
#include "k3/ops/moe/moe.h"

namespace k3::ops {

void moe_ref(const Tensor& z, const Tensor& ids, const Tensor& weights, std::span<const ExpertWeights> experts,
             const Glu& activation, bool round_to_bf16, const Tensor& out) noexcept {
  const int64_t width = z.dim(1);
  for (int64_t t = 0; t < z.dim(0); ++t) {
    std::vector<double> sum(static_cast<size_t>(width));
    for (int64_t j = 0; j < ids.dim(1); ++j) {
      const ExpertWeights& e = experts[static_cast<size_t>(static_cast<const int32_t*>(ids.data)[t * ids.stride(0) + j])];
      const int64_t hidden = e.w1.rows;
      std::vector<float> gate(static_cast<size_t>(hidden)), up(gate), y(static_cast<size_t>(width));
      const Tensor g(gate.data(), DType::f32, {1, hidden}), u(up.data(), DType::f32, {1, hidden});
      linear_ref(z.slice(t, t + 1), e.w1, g, round_to_bf16);
      linear_ref(z.slice(t, t + 1), e.w3, u, round_to_bf16);
      glu_ref(g, u, activation, g);
      linear_ref(g, e.w2, Tensor(y.data(), DType::f32, {1, width}), round_to_bf16);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(weights.row(t)[j]) * static_cast<double>(y[i]);
    }
    for (size_t i = 0; i < sum.size(); ++i) out.row(t)[i] = static_cast<float>(sum[i]);
  }
}

}  // namespace k3::ops
