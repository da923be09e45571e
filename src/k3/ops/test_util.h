// Purpose:  helpers of the op tests and benches: instruction sets to run, random data, guarded outputs.
// Shapes:   flat arrays of floats.
// Units:    none.
// Memory:   Guarded owns its buffer: poison (NaN) inside, guard words on both sides.
// Threads:  none.
// Errors:   none.
// Source:   architecture 10 (outputs poisoned first, guards around outputs).
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "k3/base/rng.h"
#include "k3/ops/cpu/isa.h"

namespace k3::ops {

// Every level this machine can run. amx is left out: below it lies oneDNN, tested by its own.
inline std::vector<Isa> test_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (isa <= detect_isa()) isas.push_back(isa);
  }
  return isas;
}

inline std::vector<float> random_normal(int64_t count, uint64_t seed, float scale = 1.0F) {
  const Rng rng(seed, 77);
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = scale * static_cast<float>(rng.normal(i));
  return x;
}

class Guarded {
 public:
  explicit Guarded(int64_t count)
      : count_(count), buffer_(static_cast<size_t>(count) + 2 * kGuard, std::bit_cast<float>(kWord)) {
    for (int64_t i = 0; i < count; ++i) data()[i] = std::numeric_limits<float>::quiet_NaN();
  }
  float* data() { return buffer_.data() + kGuard; }
  const float* data() const { return buffer_.data() + kGuard; }
  int64_t size() const { return count_; }
  bool intact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (std::bit_cast<uint32_t>(buffer_[i]) != kWord) return false;
      if (std::bit_cast<uint32_t>(buffer_[buffer_.size() - 1 - i]) != kWord) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint32_t kWord = 0x7FA5A5A5;  // a NaN no kernel produces
  int64_t count_;
  std::vector<float> buffer_;
};

}  // namespace k3::ops
