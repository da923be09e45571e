#include "k3/ops/int8/int8.h"

#include <algorithm>
#include <cmath>

#include "k3/base/check.h"

namespace k3::ops {

Status int8_quantise(const float* values, int64_t rows, int64_t cols, int8_t* codes, uint8_t* scales) {
  K3_CHECK(cols % kInt8Group == 0, "int8: {} columns are not whole groups of 32", cols);
  for (int64_t g = 0; g < rows * cols / kInt8Group; ++g) {
    const float* v = values + g * kInt8Group;
    uint32_t amax = 0;  // of the bits: floats of one sign order like them, and NaN comes above all
    for (int64_t i = 0; i < kInt8Group; ++i) amax = std::max(amax, std::bit_cast<uint32_t>(v[i]) & 0x7FFFFFFFU);
    if (amax >= 0x7F800000U) {
      return fail(Code::invalid_argument, "row {}: {} cannot be stored in 8 bits", g * kInt8Group / cols,
                  std::bit_cast<float>(amax));
    }
    const uint32_t exponent = amax >> 23;  // floor(log2 amax) + 127; 0 for zero and subnormal numbers
    scales[g] = static_cast<uint8_t>(exponent > 6 ? exponent : 0);
    const double inverse = exponent > 6 ? std::ldexp(1.0, 133 - static_cast<int>(exponent)) : 0.0;
    for (int64_t i = 0; i < kInt8Group; ++i) {
      const double q = std::nearbyint(static_cast<double>(v[i]) * inverse);
      codes[g * kInt8Group + i] = static_cast<int8_t>(std::clamp(q, -127.0, 127.0));
    }
  }
  return {};
}

void int8_dequantise(const int8_t* codes, const uint8_t* scales, int64_t rows, int64_t cols, float* out) noexcept {
  for (int64_t i = 0; i < rows * cols; ++i) {
    out[i] = int8_factor(scales[i / kInt8Group]) * static_cast<float>(codes[i]);
  }
}

}  // namespace k3::ops
