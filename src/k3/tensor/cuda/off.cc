<<<<<<< HEAD
// Built without CUDA: there is only the CPU.
=======
// Without CUDA: no device is there, and every function says so.
>>>>>>> gemm
#include "k3/tensor/device.h"

namespace k3 {
namespace {
<<<<<<< HEAD

Error without() { return fail(Code::unsupported, "this program was built without CUDA (nvcc was not found); --device cpu works"); }

}  // namespace

Status set_current_device(Device device) {
  if (!device.is_cuda()) return {};
  return without();
}
Result<DeviceMemory> device_memory(Device) { return without(); }
Result<std::byte*> device_allocate(Device, int64_t) { return without(); }
void device_free(std::byte*) {}
Result<std::byte*> pinned_allocate(int64_t) { return without(); }
void pinned_free(std::byte*) {}
Status copy_async(void*, const void*, int64_t, Stream) { return without(); }
Status fill_async(void*, int, int64_t, Stream) { return without(); }
Status synchronize(Stream) { return without(); }
void stream_free(Stream) {}
void event_free(CUevent_st*) {}
void graph_free(CUgraphExec_st*) {}
Result<StreamHandle> make_stream() { return without(); }
Result<EventHandle> make_event() { return without(); }
Status record(const EventHandle&, Stream) { return without(); }
Status wait(Stream, const EventHandle&) { return without(); }
Status wait_for(const EventHandle&) { return without(); }
Result<double> seconds_between(const EventHandle&, const EventHandle&) { return without(); }
Status begin_capture(Stream) { return without(); }
Result<GraphHandle> end_capture(Stream) { return without(); }
Status launch_graph(const GraphHandle&, Stream) { return without(); }
=======
Error off() { return fail(Code::unsupported, "this program was built without CUDA (nvcc was not found)"); }
}  // namespace

int cuda_device_count() { return 0; }
Result<DeviceMemory> device_memory(const Device&) { return off(); }

void DeviceStorage::Free::operator()(std::byte*) const {}
Result<DeviceStorage> DeviceStorage::allocate(const Device&, int64_t) { return off(); }

void PinnedStorage::Free::operator()(std::byte*) const {}
Result<PinnedStorage> PinnedStorage::allocate(int64_t) { return off(); }

void StreamHandle::Free::operator()(CUstream_st*) const {}
Result<StreamHandle> StreamHandle::create(const Device&) { return off(); }
Status StreamHandle::synchronize() const { return off(); }
Status StreamHandle::wait(const Event&) const { return off(); }

void Event::Free::operator()(CUevent_st*) const {}
Result<Event> Event::create(const Device&) { return off(); }
Status Event::record(const StreamHandle&) const { return off(); }
Result<bool> Event::done() const { return off(); }
Status Event::synchronize() const { return off(); }
Result<double> Event::seconds_since(const Event&) const { return off(); }

Status copy_async(void*, const void*, int64_t, const StreamHandle&) { return off(); }
Result<CopyRates> measure_pinned_copies(const Device&, int64_t) { return off(); }
>>>>>>> gemm

}  // namespace k3
