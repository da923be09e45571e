// Internal to ops/cuda. Device memory of tests and benches: arrays that begin poisoned and are guarded on both sides.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

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

// count elements of T on the device. Fresh memory is NaN in every floating format (0xFF bytes); 256 guard bytes on both
// sides.
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
  void set(std::span<const T> host) const { set_at(0, host); }
  std::vector<T> get() const { return get_at(0, count_); }
  // Elements from `first` on.
  void set_at(int64_t first, std::span<const T> host) const {
    gpu_check(cudaMemcpy(data() + first, host.data(), host.size_bytes(), cudaMemcpyHostToDevice), "copy to the device");
  }
  std::vector<T> get_at(int64_t first, int64_t count) const {  // waits for the device
    std::vector<T> host(static_cast<size_t>(count));
    gpu_check(cudaMemcpy(host.data(), data() + first, host.size() * sizeof(T), cudaMemcpyDeviceToHost),
              "copy from the device");
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

}  // namespace k3::ops::cuda
