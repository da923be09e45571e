// Without CUDA: no device is there, and every function says so.
#include "k3/tensor/device.h"

namespace k3 {
namespace {
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

}  // namespace k3
