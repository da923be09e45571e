// Internal to ops/cuda. Helpers of tests and benches on a GPU: device buffers that begin poisoned and are guarded on both sides,
// BF16 inputs that reference and kernel share, the norm ratio of kernels.md 9.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "k3/ops/cuda/launch.h"
#include "k3/ops/test_util.h"
#include "k3/tensor/dtype.h"

namespace k3::ops::cuda {

inline bool gpu_present() {
  static const bool present = [] {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  }();
  return present;
}

inline void gpu_check(int code, std::string_view what) {  // of a test's own calls: nothing can go on
  if (code == 0) return;
  fmt::print(stderr, "{}: {}\n", what, cudaGetErrorString(static_cast<cudaError_t>(code)));
  std::fflush(stderr);
  std::_Exit(3);
}

inline void gpu_sync() { gpu_check(cudaDeviceSynchronize(), "synchronize"); }

// count elements of T on the device. Fresh memory is NaN in every floating format (0xFF bytes); 256 guard bytes on both sides.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(int64_t count) : count_(count) {
    gpu_check(cudaMalloc(reinterpret_cast<void**>(&base_), bytes() + 2 * kGuard), "cudaMalloc");
    poison();
  }
  explicit DeviceArray(std::span<const T> host) : DeviceArray(static_cast<int64_t>(host.size())) { set(host); }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(std::span<const T>(host)) {}
  DeviceArray(DeviceArray&& o) noexcept : base_(std::exchange(o.base_, nullptr)), count_(o.count_) {}
  DeviceArray& operator=(DeviceArray&& o) noexcept {
    std::swap(base_, o.base_);
    std::swap(count_, o.count_);
    return *this;
  }
  ~DeviceArray() {
    if (base_ != nullptr) cudaFree(base_);
  }

  T* data() const { return reinterpret_cast<T*>(base_ + kGuard); }
  int64_t size() const { return count_; }
  size_t bytes() const { return static_cast<size_t>(count_) * sizeof(T); }
  void poison() const { gpu_check(cudaMemset(base_, 0xFF, bytes() + 2 * kGuard), "cudaMemset"); }
  void zero() const { gpu_check(cudaMemset(data(), 0, bytes()), "cudaMemset"); }
  void set(std::span<const T> host) const {
    gpu_check(cudaMemcpy(data(), host.data(), host.size_bytes(), cudaMemcpyHostToDevice), "copy to the device");
  }
  std::vector<T> get() const {  // waits for the device
    std::vector<T> host(static_cast<size_t>(count_));
    gpu_check(cudaMemcpy(host.data(), data(), bytes(), cudaMemcpyDeviceToHost), "copy from the device");
    return host;
  }
  bool guards_intact() const {
    std::vector<uint8_t> guard(kGuard);
    for (const std::byte* at : {base_, base_ + kGuard + bytes()}) {
      gpu_check(cudaMemcpy(guard.data(), at, kGuard, cudaMemcpyDeviceToHost), "copy from the device");
      for (const uint8_t byte : guard) {
        if (byte != 0xFF) return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 256;
  std::byte* base_ = nullptr;
  int64_t count_ = 0;
};

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
