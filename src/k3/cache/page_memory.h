// Purpose:  the bytes of the pool's pages, wherever they lie: every access of the cache to them goes through here.
// Shapes:   pages of page_bytes, one behind the other.
// Units:    bytes, pages.
// Memory:   on the host one reservation that is committed when first touched; on a device one allocation and, for what goes to
//           and comes from the host, pinned images of pages, made when first needed, as many as were wanted at once.
// Threads:  one thread.
// Errors:   create: exhausted. read, open: exhausted for the images, device_lost. copy, fill and store have no answer: once the
//           device has failed they do nothing and status() says why; a step on it fails, too.
// Source:   serving.md 3.2, 3.4. On a device nothing waits but read (for the bytes) and open (until the device has taken what was
//           stored before): copies are in the order of the steps.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "k3/cache/device_queue.h"
#include "k3/tensor/tensor.h"

namespace k3::cache {

class PageMemory {
 public:
  PageMemory() = default;  // none: pages have no bytes
  static Result<PageMemory> on_host(int64_t page_bytes, int64_t count);
  static Result<PageMemory> on_device(int64_t page_bytes, int64_t count, std::shared_ptr<DeviceQueue> queue);

  bool backed() const { return base_ != nullptr; }
  bool on_host() const { return backed() && queue_ == nullptr; }
  std::byte* base() const { return base_; }  // of page 0, for steps; not to be touched on the host when it is a device's
  Status status() const { return status_; }

  void copy(int32_t from, int32_t to, int64_t offset, int64_t bytes);
  void fill(int32_t page, int value);

  // Images of whole pages on the host: the pages themselves where they lie there. Null pointers when not backed. Valid until the
  // next call of read or open.
  Result<std::span<const std::byte* const>> read(std::span<const int32_t> pages);
  // Images with any content, to be filled with what the pages are to hold; what is stored from them gets there.
  Result<std::span<std::byte* const>> open(std::span<const int32_t> pages);
  void store(size_t image, int64_t offset, int64_t bytes);  // of the last open

 private:
  std::byte* at(int32_t page) const { return base_ + page * page_bytes_; }
  Status prepare(std::span<const int32_t> pages);
  void note(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  int64_t page_bytes_ = 0;
  std::byte* base_ = nullptr;
  Storage host_;
  std::shared_ptr<DeviceQueue> queue_;  // null: on the host
  std::vector<std::byte*> own_images_;
  std::vector<int32_t> pages_;          // of the last read or open
  std::vector<std::byte*> images_;
  bool stored_ = false;                 // the device may still be reading an image
  Status status_;                       // of the device: the first failure
};

}  // namespace k3::cache
