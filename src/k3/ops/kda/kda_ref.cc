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

// Elements [at, at + state.size()) of a stored state.
std::vector<double> load(const void* from, DType dtype, int64_t at, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  convert_to_float(static_cast<const std::byte*>(from) + at * dtype_bytes(dtype), dtype, count, values.data());
  return {values.begin(), values.end()};
}

void store(const std::vector<double>& state, DType dtype, int64_t at, void* to) {
  const std::vector<float> values(state.begin(), state.end());
  convert_from_float(values.data(), dtype, static_cast<int64_t>(values.size()),
                     static_cast<std::byte*>(to) + at * dtype_bytes(dtype));
}

}  // namespace

void kda_ref(const KdaArgs& args) noexcept {
  const int64_t heads = args.q.dim(1), size = args.q.dim(2) * args.q.dim(2);
  for (size_t s = 0; s + 1 < args.offsets.size(); ++s) {
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<double> state = load(args.states[s], args.state_dtype, h * size, size);
      for (int64_t t = args.offsets[s]; t < args.offsets[s + 1]; ++t) {
        step(args, t, h, state);
        for (const KdaExport& e : args.exports) {
          const bool here = e.sequence == static_cast<int64_t>(s) && e.tokens == t + 1 - args.offsets[s];
          if (here) store(state, args.state_dtype, h * size, e.state);
        }
      }
      if (args.offsets[s + 1] > args.offsets[s]) store(state, args.state_dtype, h * size, args.states[s]);
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
