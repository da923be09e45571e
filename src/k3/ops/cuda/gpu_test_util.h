// Internal to ops/cuda. Helpers of tests and benches on a GPU: device buffers (device_array.h), BF16 inputs that reference and
// kernel share, the norm ratio of kernels.md 9.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "k3/ops/cuda/device_array.h"
#include "k3/ops/cuda/launch.h"
#include "k3/ops/test_util.h"
#include "k3/tensor/dtype.h"

namespace k3::ops::cuda {

inline std::vector<uint16_t> to_bf16(std::span<const float> values) {
  std::vector<uint16_t> out(values.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = float_to_bf16(values[i]);
  return out;
}
inline std::vector<float> from_bf16(std::span<const uint16_t> bits) {
  std::vector<float> out(bits.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = bf16_to_float(bits[i]);
  return out;
}
// Values that BF16 holds exactly: what both the reference and the kernel are given.
inline std::vector<float> random_bf16(int64_t count, uint64_t seed, float scale = 1.0F) {
  std::vector<float> x = random_normal(count, seed, scale);
  for (float& v : x) v = round_to_bf16(v);
  return x;
}

// ||x - ref|| / ||ref||; NaN when anything is NaN (and then no comparison holds).
template <class A, class B>
double norm_ratio(std::span<const A> x, std::span<const B> ref) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < ref.size(); ++i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(ref[i]);
    error += d * d;
    norm += static_cast<double>(ref[i]) * static_cast<double>(ref[i]);
  }
  if (x.size() != ref.size()) return std::nan("");
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}
inline double norm_ratio(const std::vector<float>& x, const std::vector<float>& ref) {
  return norm_ratio(std::span<const float>(x), std::span<const float>(ref));
}

// While it lives the device passes for one before Hopper, so that plain kernels run.
class PretendPlain {
 public:
  PretendPlain() : real_(device_info()) {
    DeviceInfo info = real_;
    info.capability = 80;
    pretend_device(info);
  }
  ~PretendPlain() { pretend_device(real_); }
  PretendPlain(const PretendPlain&) = delete;
  PretendPlain& operator=(const PretendPlain&) = delete;

 private:
  DeviceInfo real_;
};

}  // namespace k3::ops::cuda

// First line of a test: without a GPU it is skipped (such machines still build it).
#define K3_NEEDS_GPU() \
  if (!::k3::ops::cuda::gpu_present()) GTEST_SKIP() << "no GPU"
