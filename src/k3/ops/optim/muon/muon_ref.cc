// Muon in double, by the definition: oracle, and the optimizer of runs in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "k3/ops/optim/muon/muon.h"

namespace k3::ops {
namespace {

using Matrix = std::vector<double>;

// a [m, k] times b [k, n]; the loop over columns is innermost, so that it reads rows.
Matrix times(const Matrix& a, const Matrix& b, size_t m, size_t k, size_t n) {
  Matrix c(m * n, 0.0);
  for (size_t i = 0; i < m; ++i) {
    for (size_t l = 0; l < k; ++l) {
      const double x = a[i * k + l];
      for (size_t j = 0; j < n; ++j) c[i * n + j] += x * b[l * n + j];
    }
  }
  return c;
}

Matrix transposed(const Matrix& a, size_t rows, size_t cols) {
  Matrix t(a.size());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < cols; ++j) t[j * rows + i] = a[i * cols + j];
  }
  return t;
}

Matrix newton_schulz_of(Matrix x, size_t rows, size_t cols) {
  const bool tall = rows > cols;
  if (tall) {
    x = transposed(x, rows, cols);
    std::swap(rows, cols);
  }
  double squares = 0;
  for (const double v : x) squares += v * v;
  for (double& v : x) v /= std::sqrt(squares) + kNsEps;
  for (int step = 0; step < kNsSteps; ++step) {
    const Matrix a = times(x, transposed(x, rows, cols), rows, cols, rows);
    Matrix b = times(a, a, rows, rows, rows);
    for (size_t i = 0; i < b.size(); ++i) b[i] = kNsCoefficients[1] * a[i] + kNsCoefficients[2] * b[i];
    const Matrix bx = times(b, x, rows, rows, cols);
    for (size_t i = 0; i < x.size(); ++i) x[i] = kNsCoefficients[0] * x[i] + bx[i];
  }
  return tall ? transposed(x, rows, cols) : x;
}

}  // namespace

void newton_schulz_ref(const NsUnits& units, const double* in, double* out) noexcept {
  const auto rows = static_cast<size_t>(units.rows), cols = static_cast<size_t>(units.cols);
  for (int64_t u = 0; u < units.count; ++u) {
    const double* unit = in + u * units.stride;
    const Matrix o = newton_schulz_of(Matrix(unit, unit + rows * cols), rows, cols);
    std::copy(o.begin(), o.end(), out + u * units.stride);
  }
}

void muon_ref(std::span<const MuonTensor<double>> tensors, const MuonOptions& options, const double* scale) noexcept {
  if (scale != nullptr && std::isnan(*scale)) return;
  for (const MuonTensor<double>& t : tensors) {
    const int64_t size = t.units.rows * t.units.cols;
    Matrix update(static_cast<size_t>(size));
    for (int64_t u = 0; u < t.units.count; ++u) {
      const int64_t at = u * t.units.stride;
      for (int64_t i = 0; i < size; ++i) {
        const double g = scale == nullptr ? t.grad[at + i] : t.grad[at + i] * *scale;
        double& m = t.momentum[at + i];
        m = options.momentum * m + g;
        update[static_cast<size_t>(i)] = options.nesterov ? g + options.momentum * m : m;
      }
      const Matrix o = newton_schulz_of(update, static_cast<size_t>(t.units.rows), static_cast<size_t>(t.units.cols));
      for (int64_t i = 0; i < size; ++i) {
        double& w = t.weight[at + i];
        w = w * (1 - t.lr * t.decay) - t.lr * muon_update_scale(t.units) * o[static_cast<size_t>(i)];
        if (t.bf16 != nullptr) t.bf16[at + i] = float_to_bf16(static_cast<float>(w));
      }
    }
  }
}

}  // namespace k3::ops
