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

#include "k3/base/result.h"

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace k3 {

struct Device {
  int32_t cuda = -1;  // index, or -1: the CPU
  bool is_cuda() const { return cuda >= 0; }
  bool operator==(const Device&) const = default;
};
std::string device_name(Device device);  // "cpu", "cuda:0"
// "cpu", "cuda", "cuda:1"; checks that the device is there.
Result<Device> parse_device(std::string_view text);

using Stream = CUstream_st*;  // cudaStream_t; null: the default stream

struct DeviceMemory {
  int64_t free_bytes = 0, total_bytes = 0;
};
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

}  // namespace k3
