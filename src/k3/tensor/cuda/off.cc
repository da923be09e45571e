// Built without CUDA: there is only the CPU.
#include "k3/tensor/device.h"

namespace k3 {
namespace {

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

}  // namespace k3
