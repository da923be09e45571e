// Quantisation of inputs, the portable kernel and the choice by instruction set of int8_dots.h.
#include "k3/ops/gemm/int8_dots.h"

#include <algorithm>
#include <bit>

#include "k3/ops/gemm/int8_decode.h"

namespace k3::ops {
namespace {

int32_t dot_group(const int8_t* a, const int8_t* b) {
  int32_t sum = 0;
  for (int64_t i = 0; i < kInt8DotGroup; ++i) sum += int32_t{a[i]} * int32_t{b[i]};
  return sum;
}

}  // namespace

void int8_quantise_row(const float* x, int64_t begin, int64_t count, int64_t cols, uint8_t* row) noexcept {
  auto* q = reinterpret_cast<int8_t*>(row) + begin;
  auto* scales = const_cast<float*>(int8_scales(row, cols)) + begin / kInt8DotGroup;
  auto* sums = const_cast<int32_t*>(int8_sums(row, cols)) + begin / kInt8DotGroup;
  for (int64_t g = 0; g < count / kInt8DotGroup; ++g, x += kInt8DotGroup, q += kInt8DotGroup) {
    uint32_t bits = 0;  // of the largest magnitude: floats of one sign order like them, and NaN comes above all
    for (int64_t i = 0; i < kInt8DotGroup; ++i) bits = std::max(bits, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFU);
    const float amax = std::bit_cast<float>(bits);
    const bool finite = bits < 0x7F800000U, live = amax >= 0x1p-100F && finite;
    const float inverse = live ? 127.0F / amax : 0.0F;
    scales[g] = live ? amax / 127.0F : finite ? 0.0F : amax;
    int32_t sum = 0;
    if (finite) {
      constexpr float kRound = 0x1.8p23F;  // adding it leaves the nearest whole number, ties to even, in the low bits
      for (int64_t i = 0; i < kInt8DotGroup; ++i) {
        const auto value = static_cast<int32_t>(std::bit_cast<uint32_t>(x[i] * inverse + kRound) - 0x4B400000U);
        q[i] = static_cast<int8_t>(value);
        sum += value;
      }
    } else {
      std::fill_n(q, kInt8DotGroup, int8_t{0});
    }
    sums[g] = sum;
  }
}

void int8_portable(const Int8Job& job) noexcept {
  int8_t w[kInt8Block];
  float factors[kInt8Block / kInt8DotGroup];
  for (int64_t row = job.row_begin; row < job.row_end; ++row) {
    for (int64_t k0 = 0; k0 < job.w.cols; k0 += kInt8Block) {
      const int64_t columns = std::min(kInt8Block, job.w.cols - k0), groups = columns / kInt8DotGroup;
      int8_factors(job.w, row, k0, columns, factors);
      int8_decode(job.w, row, k0, columns, w);
      for (int64_t t = 0; t < job.tokens; ++t) {
        const auto* q = reinterpret_cast<const int8_t*>(job.x[t]) + k0;
        const float* scales = int8_scales(job.x[t], job.w.cols) + k0 / kInt8DotGroup;
        float sum = 0;
        for (int64_t g = 0; g < groups; ++g) {
          const int32_t dot = dot_group(q + g * kInt8DotGroup, w + g * kInt8DotGroup);
          sum += scales[g] * factors[g] * static_cast<float>(dot);
        }
        float& y = job.y[t][row - job.y_origin];
        y = k0 == 0 ? sum : y + sum;
      }
    }
  }
}

Int8Fn int8_fn(Isa isa) {
  if (isa >= Isa::avx512bf16) return int8_avx512bf16;
  return isa >= Isa::avx2 ? int8_avx2 : int8_portable;
}

}  // namespace k3::ops
