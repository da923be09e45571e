<<<<<<< HEAD
// Where tensors lie and work is done: the CPU, or one CUDA device. Streams, events, captured graphs and copies, without CUDA headers.
//
// Everything here answers `unsupported` in a program built without CUDA, and `unavailable` on a machine without a GPU. A handle
// belongs to the device that was current when it was made (set_current_device). Calls that fail in the CUDA runtime answer
// device_lost with its text; such an error is sticky, and the device cannot be used any more by this process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
=======
// Devices: where tensors lie and work runs. Owners of device memory, pinned host memory, streams and events.
//
// Owners free what they hold when they go; none may outlive the process' use of the device. All are movable; an empty one holds
// nothing. Each call may be made from any thread, one thread an object. Calls restore the thread's current device. Without CUDA
// (or without a GPU) every function answers `unsupported` (`unavailable`), and cuda_device_count() is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
>>>>>>> gemm

#include "k3/base/result.h"

struct CUstream_st;
struct CUevent_st;
<<<<<<< HEAD
struct CUgraphExec_st;
=======
>>>>>>> gemm

namespace k3 {

struct Device {
<<<<<<< HEAD
  int32_t cuda = -1;  // index, or -1: the CPU
  bool is_cuda() const { return cuda >= 0; }
  bool operator==(const Device&) const = default;
};
std::string device_name(Device device);  // "cpu", "cuda:0"
// "cpu", "cuda", "cuda:1"; checks that the device is there.
Result<Device> parse_device(std::string_view text);

using Stream = CUstream_st*;  // cudaStream_t; null: the default stream
=======
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  static Result<Device> parse(std::string_view text);  // "cpu", "cuda" (the first), "cuda:3"
  std::string text() const;
  bool operator==(const Device&) const = default;
};

int cuda_device_count();
>>>>>>> gemm

struct DeviceMemory {
  int64_t free_bytes = 0, total_bytes = 0;
};
<<<<<<< HEAD
Result<DeviceMemory> device_memory(Device device);
Status set_current_device(Device device);  // of the calling thread

// Raw memory. Device memory comes zeroed; pinned memory is host memory that copies without staging.
Result<std::byte*> device_allocate(Device device, int64_t bytes);
void device_free(std::byte* memory);
Result<std::byte*> pinned_allocate(int64_t bytes);
void pinned_free(std::byte* memory);

// Asynchronous on the stream; the direction follows from the addresses. Host memory that is not pinned makes the call wait.
Status copy_async(void* to, const void* from, int64_t bytes, Stream stream);
Status fill_async(void* to, int value, int64_t bytes, Stream stream);
Status synchronize(Stream stream);

// Owning handles. A moved-from or default one holds nothing.
template <class T, void (*kFree)(T)>
class DeviceHandle {
 public:
  DeviceHandle() = default;
  explicit DeviceHandle(T handle) : handle_(handle) {}
  DeviceHandle(DeviceHandle&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  DeviceHandle& operator=(DeviceHandle&& o) noexcept {
    std::swap(handle_, o.handle_);
    return *this;
  }
  ~DeviceHandle() {
    if (handle_ != nullptr) kFree(handle_);
  }
  T get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  T handle_ = nullptr;
};

void stream_free(Stream stream);
void event_free(CUevent_st* event);
void graph_free(CUgraphExec_st* graph);
using StreamHandle = DeviceHandle<Stream, stream_free>;
using EventHandle = DeviceHandle<CUevent_st*, event_free>;
using GraphHandle = DeviceHandle<CUgraphExec_st*, graph_free>;

Result<StreamHandle> make_stream();
Result<EventHandle> make_event();
Status record(const EventHandle& event, Stream stream);
Status wait(Stream stream, const EventHandle& event);                              // the stream waits, not the caller
Status wait_for(const EventHandle& event);                                         // the caller waits
Result<double> seconds_between(const EventHandle& begin, const EventHandle& end);  // waits for end

// What is launched on the stream between begin and end becomes a graph instead of running.
Status begin_capture(Stream stream);
Result<GraphHandle> end_capture(Stream stream);
Status launch_graph(const GraphHandle& graph, Stream stream);
=======
Result<DeviceMemory> device_memory(const Device& device);

// Bytes on a GPU, aligned to 256, uninitialised.
class DeviceStorage {
 public:
  DeviceStorage() = default;
  static Result<DeviceStorage> allocate(const Device& device, int64_t bytes);  // exhausted: the message says how much is free

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
  Status synchronize() const;              // the host waits for all that was queued
  Status wait(const Event& event) const;   // what is queued from now on waits for the event

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
>>>>>>> gemm

}  // namespace k3
