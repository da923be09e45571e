#include "k3/cache/cuda_queue.h"

namespace k3::cache {

Result<std::shared_ptr<CudaQueue>> CudaQueue::create(Device device) {
  std::shared_ptr<CudaQueue> queue(new CudaQueue(device));
  K3_TRY(set_current_device(device));
  K3_TRY_ASSIGN(queue->own_, make_stream());
  K3_TRY_ASSIGN(queue->marked_, make_event());
  queue->stream_ = queue->own_.get();
  return queue;
}

Status CudaQueue::follow(Stream stream) {
  K3_TRY(mark());
  K3_TRY(k3::wait(stream, marked_));
  stream_ = stream;
  return {};
}

Result<std::byte*> CudaQueue::allocate(int64_t bytes) {
  K3_TRY_ASSIGN(Storage storage, Storage::allocate_on(device_, bytes));
  memory_.push_back(std::move(storage));
  return memory_.back().data();
}

Result<std::byte*> CudaQueue::allocate_host(int64_t bytes) {
  K3_TRY_ASSIGN(Storage storage, Storage::pinned(bytes));
  memory_.push_back(std::move(storage));
  return memory_.back().data();
}

}  // namespace k3::cache
