// Both formats by the definition: the MXFP4 codec's own reference, and E4M3 through its conversions.
#include <algorithm>
#include <cmath>
#include <limits>

#include "k3/ops/mxfp4/mxfp4.h"
#include "k3/ops/optim/fake_quant/fake_quant.h"
#include "k3/tensor/dtype.h"

namespace k3::ops {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void mxfp8_group(const float* v, double* out) {
  double amax = 0;
  bool finite = true;
  for (int64_t i = 0; i < kMxGroup; ++i) {
    finite = finite && std::isfinite(v[i]);
    amax = std::max(amax, std::abs(static_cast<double>(v[i])));
  }
  if (!finite) return void(std::fill(out, out + kMxGroup, kNan));
  int e = -127;
  while (amax > std::ldexp(448.0, e)) ++e;
  for (int64_t i = 0; i < kMxGroup; ++i) {
    const auto y = static_cast<float>(std::ldexp(static_cast<double>(v[i]), -e));
    out[i] = std::ldexp(static_cast<double>(f8_e4m3_to_float(float_to_f8_e4m3(y))), e);
  }
}

void mxfp4_group(const float* v, double* out) {
  uint8_t packed[kMxGroup / 2], scale = 0;
  if (!mxfp4_quantise_ref(v, 1, kMxGroup, packed, &scale).ok()) return void(std::fill(out, out + kMxGroup, kNan));
  float values[kMxGroup];
  mxfp4_dequantise_ref(packed, &scale, 1, kMxGroup, values);
  for (int64_t i = 0; i < kMxGroup; ++i) out[i] = static_cast<double>(values[i]);
}

void run(const double* in, int64_t rows, int64_t cols, double* out, void (*group)(const float*, double*)) {
  K3_CHECK(cols % kMxGroup == 0, "fake_quant: {} columns are not whole groups of 32", cols);
  for (int64_t i = 0; i < rows * cols; i += kMxGroup) {
    float v[kMxGroup];
    for (int64_t j = 0; j < kMxGroup; ++j) v[j] = static_cast<float>(in[i + j]);
    group(v, out + i);
  }
}

}  // namespace

void mxfp4_fake_quant_ref(const double* in, int64_t rows, int64_t cols, double* out) noexcept { run(in, rows, cols, out, mxfp4_group); }
void mxfp8_fake_quant_ref(const double* in, int64_t rows, int64_t cols, double* out) noexcept { run(in, rows, cols, out, mxfp8_group); }

}  // namespace k3::ops
