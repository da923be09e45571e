#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <map>
#include <mutex>

#include "k3/base/units.h"
#include "k3/tensor/device.h"

namespace k3 {
namespace {

Status status_of(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  return fail(Code::device_lost, "{}: {} (CUDA error {})", what, cudaGetErrorString(error), static_cast<int>(error));
}

Result<int> device_count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  if (error == cudaSuccess || error == cudaErrorNoDevice) return fail(Code::unavailable, "this machine has no NVIDIA GPU; --device cpu works");
  return fail(Code::unavailable, "no GPU can be used: {} (is the NVIDIA driver installed and recent enough?); --device cpu works", cudaGetErrorString(error));
}

}  // namespace

Status set_current_device(Device device) {
  if (!device.is_cuda()) return {};
  K3_TRY_ASSIGN(const int count, device_count());
  if (device.cuda >= count) {
    return fail(Code::unavailable, "there is no {}: this machine has {} GPU{} (cuda:0{})", device_name(device), count, count == 1 ? "" : "s",
                count == 1 ? "" : fmt::format(" to cuda:{}", count - 1));
  }
  return status_of(cudaSetDevice(device.cuda), device_name(device));
}

Result<DeviceMemory> device_memory(Device device) {
  K3_TRY(set_current_device(device));
  size_t free_bytes = 0, total_bytes = 0;
  K3_TRY(status_of(cudaMemGetInfo(&free_bytes, &total_bytes), device_name(device)));
  return DeviceMemory{static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

Result<std::byte*> device_allocate(Device device, int64_t bytes) {
  K3_TRY(set_current_device(device));
  void* memory = nullptr;
  if (bytes < 0 || cudaMalloc(&memory, static_cast<size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();
    K3_TRY_ASSIGN(const DeviceMemory left, device_memory(device));
    return fail(Code::exhausted, "no memory for {} on {}: {} of {} are free", format_bytes(bytes), device_name(device),
                format_bytes(left.free_bytes), format_bytes(left.total_bytes));
  }
  // cudaMemset does not wait, and streams that do not block are not ordered behind it: what they write could be cleared.
  cudaError_t error = cudaMemset(memory, 0, static_cast<size_t>(bytes));
  if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);
  if (error != cudaSuccess) cudaFree(memory);
  K3_TRY(status_of(error, "clearing device memory"));
  return static_cast<std::byte*>(memory);
}

void device_free(std::byte* memory) { cudaFree(memory); }

namespace {

// Large pinned memory is a mapping of huge pages that is registered: the driver pins pages of 4 KiB several times slower.
constexpr int64_t kHugePage = int64_t{2} << 20, kLargePinned = 32 * kHugePage;
std::mutex g_mapped_mutex;
std::map<std::byte*, size_t> g_mapped;  // registered mappings and their sizes

std::byte* map_pinned(int64_t bytes) {
  const auto size = static_cast<size_t>((bytes + kHugePage - 1) / kHugePage * kHugePage);
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  ::madvise(memory, size, MADV_HUGEPAGE);
  if (cudaHostRegister(memory, size, cudaHostRegisterPortable | cudaHostRegisterMapped) != cudaSuccess) {
    cudaGetLastError();
    ::munmap(memory, size);
    return nullptr;
  }
  const std::lock_guard lock(g_mapped_mutex);
  g_mapped[static_cast<std::byte*>(memory)] = size;
  return static_cast<std::byte*>(memory);
}

// Whether it was such a mapping.
bool unmap_pinned(std::byte* memory) {
  size_t size = 0;
  {
    const std::lock_guard lock(g_mapped_mutex);
    const auto found = g_mapped.find(memory);
    if (found == g_mapped.end()) return false;
    size = found->second;
    g_mapped.erase(found);
  }
  cudaHostUnregister(memory);
  ::munmap(memory, size);
  return true;
}

}  // namespace

Result<std::byte*> pinned_allocate(int64_t bytes) {
  if (bytes >= kLargePinned) {
    if (std::byte* const mapped = map_pinned(bytes); mapped != nullptr) return mapped;
  }
  void* memory = nullptr;
  if (bytes < 0 || cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError();
    return fail(Code::exhausted, "no pinned memory for {}", format_bytes(bytes));
  }
  return static_cast<std::byte*>(memory);
}

void pinned_free(std::byte* memory) {
  if (!unmap_pinned(memory)) cudaFreeHost(memory);
}

Status copy_async(void* to, const void* from, int64_t bytes, Stream stream) {
  if (bytes == 0) return {};
  return status_of(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream), "copy");
}

Status fill_async(void* to, int value, int64_t bytes, Stream stream) {
  if (bytes == 0) return {};
  return status_of(cudaMemsetAsync(to, value, static_cast<size_t>(bytes), stream), "fill");
}

Status synchronize(Stream stream) { return status_of(cudaStreamSynchronize(stream), "waiting for the GPU"); }

void stream_free(Stream stream) { cudaStreamDestroy(stream); }
void event_free(CUevent_st* event) { cudaEventDestroy(event); }
void graph_free(CUgraphExec_st* graph) { cudaGraphExecDestroy(graph); }

Result<StreamHandle> make_stream() {
  Stream stream = nullptr;
  K3_TRY(status_of(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "new stream"));
  return StreamHandle(stream);
}

Result<EventHandle> make_event() {
  CUevent_st* event = nullptr;
  K3_TRY(status_of(cudaEventCreate(&event), "new event"));
  return EventHandle(event);
}

Status record(const EventHandle& event, Stream stream) { return status_of(cudaEventRecord(event.get(), stream), "event"); }
Status wait(Stream stream, const EventHandle& event) { return status_of(cudaStreamWaitEvent(stream, event.get(), 0), "event"); }

Status wait_for(const EventHandle& event) { return status_of(cudaEventSynchronize(event.get()), "event"); }

Result<double> seconds_between(const EventHandle& begin, const EventHandle& end) {
  K3_TRY(status_of(cudaEventSynchronize(end.get()), "event"));
  float ms = 0;
  K3_TRY(status_of(cudaEventElapsedTime(&ms, begin.get(), end.get()), "event"));
  return static_cast<double>(ms) * 1e-3;
}

Status begin_capture(Stream stream) {
  return status_of(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "graph capture");
}

Result<GraphHandle> end_capture(Stream stream) {
  cudaGraph_t graph = nullptr;
  K3_TRY(status_of(cudaStreamEndCapture(stream, &graph), "graph capture"));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  K3_TRY(status_of(error, "graph"));
  return GraphHandle(exec);
}

Status launch_graph(const GraphHandle& graph, Stream stream) { return status_of(cudaGraphLaunch(graph.get(), stream), "graph"); }

}  // namespace k3
