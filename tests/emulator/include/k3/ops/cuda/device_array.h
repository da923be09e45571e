// Internal to tests/emulator. Stands in front of src/k3/ops/cuda/device_array.h: memory of the emulated device is the
// host's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace k3::ops::cuda {

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(int64_t count) : count_(count), memory_((bytes() + 2 * kGuard + kUnit - 1) / kUnit) { poison(); }
  explicit DeviceArray(std::span<const T> host) : DeviceArray(static_cast<int64_t>(host.size())) { set(host); }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(std::span<const T>(host)) {}

  T* data() const { return reinterpret_cast<T*>(base() + kGuard); }
  int64_t size() const { return count_; }
  size_t bytes() const { return static_cast<size_t>(count_) * sizeof(T); }
  void poison() const { std::memset(base(), 0xFF, memory_.size() * kUnit); }
  void set_at(int64_t first, std::span<const T> host) const { std::copy(host.begin(), host.end(), data() + first); }
  std::vector<T> get_at(int64_t first, int64_t count) const { return {data() + first, data() + first + count}; }
  void set(std::span<const T> host) const { set_at(0, host); }
  std::vector<T> get() const { return get_at(0, count_); }
  bool guards_intact() const {
    const auto clean = [](const uint8_t* at) { return std::all_of(at, at + kGuard, [](uint8_t x) { return x == 0xFF; }); };
    return clean(base()) && clean(base() + kGuard + bytes());
  }

 private:
  static constexpr size_t kGuard = 256, kUnit = 256;
  struct alignas(kUnit) Unit {
    uint8_t bytes[kUnit];
  };
  uint8_t* base() const { return const_cast<uint8_t*>(memory_.data()->bytes); }

  int64_t count_ = 0;
  std::vector<Unit> memory_;
};

}  // namespace k3::ops::cuda
