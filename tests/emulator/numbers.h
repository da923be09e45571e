// Internal to tests/emulator. What the tests of kernels share: BF16, random numbers, how far a result is from its reference.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "k3/base/rng.h"
#include "k3/tensor/dtype.h"

namespace k3::emulator {

inline uint16_t to_bf16(float x) { return float_to_bf16(x); }
inline double from_bf16(uint16_t x) { return static_cast<double>(bf16_to_float(x)); }
constexpr uint16_t kNanBf16 = 0x7FC0;

// Normal numbers in BF16, from the place `at` of a sequence on.
inline std::vector<uint16_t> random_bf16(size_t count, uint64_t seed, float scale = 1) {
  const Rng rng(seed, 11);
  std::vector<uint16_t> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = to_bf16(scale * static_cast<float>(rng.normal(i)));
  return out;
}

// Sums of squares of differences and of what was expected. A result that is NaN is as far as can be.
struct Apart {
  double difference = 0, all = 0;
  void add(double got, double want) {
    difference += std::isnan(got) ? INFINITY : (got - want) * (got - want);
    all += want * want;
  }
  double ratio() const { return std::sqrt(difference) / std::sqrt(all + 1e-30); }
};

}  // namespace k3::emulator
