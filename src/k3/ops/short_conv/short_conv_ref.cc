#include <cmath>
#include <vector>

#include "k3/ops/short_conv/short_conv.h"

namespace k3::ops {
namespace {

float read_tail(const ConvTail& tail, int64_t i) {
  if (tail.dtype == DType::f32) return static_cast<const float*>(tail.data)[i];
  return bf16_to_float(static_cast<const uint16_t*>(tail.data)[i]);
}

void write_tail(const ConvTail& tail, int64_t i, float x) {
  if (tail.dtype == DType::f32) {
    static_cast<float*>(tail.data)[i] = x;
  } else {
    static_cast<uint16_t*>(tail.data)[i] = float_to_bf16(x);
  }
}

}  // namespace

void short_conv_ref(const Tensor& x, const Tensor& taps, std::span<const int64_t> offsets, std::span<const ConvTail> tails,
                    const Tensor& y) noexcept {
  const int64_t channels = taps.dim(0), count = taps.dim(1), before = count - 1;
  for (size_t s = 0; s < tails.size(); ++s) {
    const int64_t tokens = offsets[s + 1] - offsets[s];
    if (tokens == 0) continue;
    for (int64_t c = 0; c < channels; ++c) {
      std::vector<float> inputs;  // carried, then new
      for (int64_t n = 0; n < before; ++n) inputs.push_back(read_tail(tails[s], n * channels + c));
      for (int64_t t = offsets[s]; t < offsets[s + 1]; ++t) {
        inputs.push_back(tails[s].dtype == DType::bf16 ? round_to_bf16(x.row(t)[c]) : x.row(t)[c]);
      }
      for (int64_t t = 0; t < tokens; ++t) {
        double sum = 0;
        for (int64_t n = 0; n < count; ++n) {
          sum += static_cast<double>(taps.row(c)[n]) * inputs[static_cast<size_t>(t + n)];
        }
        y.row(offsets[s] + t)[c] = static_cast<float>(sum / (1 + std::exp(-sum)));
      }
      for (int64_t n = 0; n < before; ++n) write_tail(tails[s], n * channels + c, inputs[static_cast<size_t>(tokens + n)]);
    }
  }
}

}  // namespace k3::ops
