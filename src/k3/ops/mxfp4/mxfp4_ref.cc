// Oracle of the MXFP4 codec: one element at a time, by the definition.
#include <algorithm>
#include <cmath>

#include "k3/ops/mxfp4/mxfp4.h"

namespace k3::ops {

float mxfp4_value(int code) {
  constexpr float kValues[16] = {0.0F, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  return kValues[code & 15];
}

void mxfp4_dequantise_ref(const uint8_t* packed, const uint8_t* scales, int64_t rows, int64_t cols, float* out) noexcept {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int code = i % 2 == 0 ? packed[i / 2] & 15 : packed[i / 2] >> 4;
    out[i] = std::ldexp(mxfp4_value(code), scales[i / kMxGroup] - 127);
  }
}

namespace {

// The code whose value * 2^e is nearest; on ties the lower magnitude. A value below zero keeps its sign (code 8 when it
// rounds to zero); -0 is not below zero.
int nearest_code(double value, int e) {
  int best = 0;
  for (int code = 1; code < 8; ++code) {
    const double d = std::abs(std::abs(value) - std::ldexp(static_cast<double>(mxfp4_value(code)), e));
    const double b = std::abs(std::abs(value) - std::ldexp(static_cast<double>(mxfp4_value(best)), e));
    if (d < b) best = code;
  }
  return value < 0 ? best + 8 : best;
}

}  // namespace

Status mxfp4_quantise_ref(const float* values, int64_t rows, int64_t cols, uint8_t* packed, uint8_t* scales) {
  for (int64_t group = 0; group < rows * cols / kMxGroup; ++group) {
    const float* v = values + group * kMxGroup;
    double amax = 0;
    for (int64_t i = 0; i < kMxGroup; ++i) {
      if (!std::isfinite(v[i])) return fail(Code::invalid_argument, "group {}: {} has no MXFP4 form", group, v[i]);
      amax = std::max(amax, std::abs(static_cast<double>(v[i])));
    }
    int e = -127;
    while (amax > std::ldexp(6.0, e)) ++e;
    if (e + 127 > 252) return fail(Code::invalid_argument, "group {}: {} is too large for MXFP4", group, amax);
    scales[group] = static_cast<uint8_t>(e + 127);
    for (int64_t i = 0; i < kMxGroup; i += 2) {
      const int low = nearest_code(static_cast<double>(v[i]), e), high = nearest_code(static_cast<double>(v[i + 1]), e);
      packed[(group * kMxGroup + i) / 2] = static_cast<uint8_t>(low | high << 4);
    }
  }
  return {};
}

}  // namespace k3::ops
