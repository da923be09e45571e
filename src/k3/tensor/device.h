// Devices: where tensors lie and work runs. Owners of device memory, pinned host memory, streams and events.
//
// Owners free what they hold when they go; none may outlive the process' use of the device. All are movable; an empty one
// holds nothing. Each call may be made from any thread, one thread an object. Calls restore the thread's current device.
// Without CUDA (or without a GPU) every function answers `unsupported` (`unavailable`), and cuda_device_count() is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "k3/base/result.h"

struct CUstream_st;
struct CUevent_st;

namespace k3 {

struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  static Result<Device> parse(std::string_view text);  // "cpu", "cuda" (the first), "cuda:3"
  std::string text() const;
  bool operator==(const Device&) const = default;
};

int cuda_device_count();

struct DeviceMemory {
  int64_t free_bytes = 0, total_bytes = 0;
};
Result<DeviceMemory> device_memory(const Device& device);

// Bytes on a GPU, aligned to 256, uninitialised.
class DeviceStorage {
 public:
  DeviceStorage() = default;
  // exhausted: the message says how much is free.
  static Result<DeviceStorage> allocate(const Device& device, int64_t bytes);

  std::byte* data() const { return data_.get(); }
  int64_t size_bytes() const { return size_bytes_; }
  const Device& device() const { return device_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t size_bytes_ = 0;
  Device device_;
};

// Host memory that a GPU reads and writes directly, uninitialised.
class PinnedStorage {
 public:
  PinnedStorage() = default;
  static Result<PinnedStorage> allocate(int64_t bytes);

  std::byte* data() const { return data_.get(); }
  int64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_.get(), static_cast<size_t>(size_bytes_)}; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t size_bytes_ = 0;
};

class Event;

// A queue of work on one GPU, independent of the default stream.
class StreamHandle {
 public:
  StreamHandle() = default;
  static Result<StreamHandle> create(const Device& device);

  CUstream_st* get() const { return stream_.get(); }  // cudaStream_t
  const Device& device() const { return device_; }
  Status synchronize() const;             // the host waits for all that was queued
  Status wait(const Event& event) const;  // what is queued from now on waits for the event

 private:
  struct Free {
    void operator()(CUstream_st* stream) const;
  };
  std::unique_ptr<CUstream_st, Free> stream_;
  Device device_;
};

// A mark in a stream.
class Event {
 public:
  Event() = default;
  static Result<Event> create(const Device& device);

  CUevent_st* get() const { return event_.get(); }  // cudaEvent_t
  Status record(const StreamHandle& stream) const;
  Result<bool> done() const;
  Status synchronize() const;
  Result<double> seconds_since(const Event& begin) const;  // both recorded and done

 private:
  struct Free {
    void operator()(CUevent_st* event) const;
  };
  std::unique_ptr<CUevent_st, Free> event_;
};

// Asynchronous copies between any two places of which at least one is on the stream's GPU; the host side should be pinned.
Status copy_async(void* to, const void* from, int64_t bytes, const StreamHandle& stream);

// 10^9 bytes a second of copies between pinned memory and the device, one direction at a time.
struct CopyRates {
  double to_device_gbps = 0, to_host_gbps = 0;
};
Result<CopyRates> measure_pinned_copies(const Device& device, int64_t bytes = int64_t{256} << 20);

}  // namespace k3
