#include <cmath>
#include <vector>

#include "k3/ops/kda/kda.h"

namespace k3::ops {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

double log_decay(double z, double dt_bias, double a_log, std::optional<float> lower_bound) {
  const double a = std::exp(a_log), x = z + dt_bias;
  return lower_bound ? static_cast<double>(*lower_bound) * sigmoid(a * x) : -a * softplus(x);
}

std::vector<double> l2_normalised(const float* x, int64_t n, double scale) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  std::vector<double> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i)] = scale * x[i] / std::sqrt(sum + 1e-6);
  return out;
}

// One token of one head; state [D, D] V-first.
void step(const KdaArgs& args, int64_t t, int64_t h, std::vector<double>& state) {
  const int64_t heads = args.q.dim(1), dim = args.q.dim(2), at = (t * heads + h) * dim;
  const auto kn = l2_normalised(args.k.f32() + at, dim, 1);
  const auto qn = l2_normalised(args.q.f32() + at, dim, 1 / std::sqrt(static_cast<double>(dim)));
  const double beta = sigmoid(args.b.f32()[t * heads + h]);
  for (int64_t i = 0; i < dim; ++i) {
    const double g = log_decay(args.z.f32()[at + i], args.dt_bias.f32()[h * dim + i], args.a_log.f32()[h], args.lower_bound);
    for (int64_t v = 0; v < dim; ++v) state[static_cast<size_t>(v * dim + i)] *= std::exp(g);
  }
  for (int64_t v = 0; v < dim; ++v) {
    double* row = state.data() + v * dim;
    double read = 0, out = 0;
    for (int64_t i = 0; i < dim; ++i) read += row[i] * kn[static_cast<size_t>(i)];
    const double u = beta * (args.v.f32()[at + v] - read);
    for (int64_t i = 0; i < dim; ++i) row[i] += u * kn[static_cast<size_t>(i)];
    for (int64_t i = 0; i < dim; ++i) out += row[i] * qn[static_cast<size_t>(i)];
    args.out.f32()[at + v] = static_cast<float>(out);
  }
}

void store(const std::vector<double>& state, float* to) {
  for (size_t i = 0; i < state.size(); ++i) to[i] = static_cast<float>(state[i]);
}

}  // namespace

void kda_ref(const KdaArgs& args) noexcept {
  const int64_t heads = args.q.dim(1), dim = args.q.dim(2);
  for (size_t s = 0; s + 1 < args.offsets.size(); ++s) {
    for (int64_t h = 0; h < heads; ++h) {
      float* head_state = args.states[s] + h * dim * dim;
      std::vector<double> state(head_state, head_state + dim * dim);
      for (int64_t t = args.offsets[s]; t < args.offsets[s + 1]; ++t) {
        step(args, t, h, state);
        for (const KdaExport& e : args.exports) {
          if (e.sequence == static_cast<int64_t>(s) && e.tokens == t + 1 - args.offsets[s])
            store(state, e.state + h * dim * dim);
        }
      }
      if (args.offsets[s + 1] > args.offsets[s]) store(state, head_state);
    }
  }
}

void kda_decay_ref(const Tensor& z, const Tensor& a_log, const Tensor& dt_bias, std::optional<float> lower_bound,
                   const Tensor& g) noexcept {
  const int64_t heads = z.dim(1), dim = z.dim(2);
  for (int64_t i = 0; i < z.size(); ++i) {
    const int64_t h = i / dim % heads;
    g.f32()[i] = static_cast<float>(log_decay(z.f32()[i], dt_bias.f32()[i % (heads * dim)], a_log.f32()[h], lower_bound));
  }
}

}  // namespace k3::ops
