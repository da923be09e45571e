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
#include <cstring>
#include <limits>
#include <vector>

#include "k3/base/rng.h"
#include "k3/ops/ctx.h"

namespace k3::ops {

// memcmp, also for empty vectors, whose data is null.
inline int compare_bytes(const void* a, const void* b, size_t count) { return count == 0 ? 0 : std::memcmp(a, b, count); }

// Every level this machine can run.
inline std::vector<Isa> test_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx}) {
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

// A Ctx with its own pool and workspace.
struct TestRun {
  ThreadPool pool;
  Workspace workspace;
  Ctx ctx;
  explicit TestRun(Isa isa, int threads = 1, Policy policy = Policy::exact) : pool(threads) {
    ctx = {.pool = &pool, .workspace = &workspace, .isa = isa, .policy = policy, .deterministic = true};
  }
};

// [rows, cols] f32 view; stride 0 means contiguous.
inline Tensor matrix(float* data, int64_t rows, int64_t cols, int64_t stride = 0) {
  Tensor t(data, DType::f32, {rows, cols});
  if (stride != 0) t.strides[0] = stride;
  return t;
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
